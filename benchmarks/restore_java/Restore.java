import java.lang.management.ManagementFactory;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * The count of benchmarks/restore.py in Kafka Streams, for a figure beside ours: arguments are the broker, the input topic, how
 * many partitions it has, the folder for state, "fill" or "restore", and how often.
 *
 * "fill" counts all of the input and ends in order. "restore" removes the state, starts, and prints for each time the seconds by
 * the clock and the CPU seconds of this process, from the first partition that begins to restore to the last that has.
 * The first time has a JVM that was just started, the others one that has done it before.
 */
public class Restore {
    public static void main(String[] args) throws Exception {
        String broker = args[0], topic = args[1], folder = args[3];
        int partitions = Integer.parseInt(args[2]);
        boolean fill = args[4].equals("fill");
        Properties given = new Properties();
        given.put(StreamsConfig.APPLICATION_ID_CONFIG, "streams-restore");
        given.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, broker);
        given.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        given.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        given.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1);
        given.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        given.put(StreamsConfig.STATE_DIR_CONFIG, folder);
        given.put("auto.offset.reset", "earliest");
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(topic, Consumed.with(Serdes.Bytes(), Serdes.ByteArray()))
            .groupByKey(Grouped.with(Serdes.Bytes(), Serdes.ByteArray()))
            .count(Materialized.<Bytes, Long, KeyValueStore<Bytes, byte[]>>as("counts").withKeySerde(Serdes.Bytes()));
        for (int turn = 0; turn < Integer.parseInt(args[5]); turn++) {
            KafkaStreams streams = new KafkaStreams(builder.build(), given);
            if (fill) {
                run(streams, () -> caughtUp(streams, partitions));
            } else {
                streams.cleanUp();
                Restored restored = new Restored(partitions);
                streams.setGlobalStateRestoreListener(restored);
                run(streams, restored::await);
                System.out.println(restored.seconds + " " + restored.cpuSeconds);
            }
        }
        Runtime.getRuntime().halt(0);
    }

    interface Until {
        void is() throws Exception;
    }

    static void run(KafkaStreams streams, Until done) throws Exception {
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
            return null;
        });
        streams.start();
        done.is();
        streams.close();
    }

    /** Until each partition was read to its end: the lag of the consumer, as it reports it, is 0 for all of them. */
    static void caughtUp(KafkaStreams streams, int partitions) throws Exception {
        for (long deadline = System.nanoTime() + 300_000_000_000L; System.nanoTime() < deadline; Thread.sleep(100)) {
            var lags = streams.metrics().values().stream()
                .filter(one -> one.metricName().name().equals("records-lag") && !one.metricName().tags().containsKey("state"))
                .filter(one -> one.metricName().tags().get("client-id").matches(".*StreamThread-\\d+-consumer"))
                .map(one -> (Double) one.metricValue()).toList();
            if (lags.size() >= partitions && lags.stream().allMatch(lag -> lag == 0.0)) {
                Thread.sleep(1_000); // what was read is processed and committed
                return;
            }
        }
        throw new IllegalStateException("the input was not read to its end");
    }

    static double cpu() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime() / 1e9;
    }

    static class Restored implements StateRestoreListener {
        final CountDownLatch left;
        double seconds, cpuSeconds;
        private long began;
        private double beganCpu;

        Restored(int partitions) {
            left = new CountDownLatch(partitions);
        }

        @Override
        public synchronized void onRestoreStart(TopicPartition partition, String store, long first, long end) {
            if (began == 0) {
                began = System.nanoTime();
                beganCpu = cpu();
            }
        }

        @Override
        public void onBatchRestored(TopicPartition partition, String store, long offset, long count) {}

        @Override
        public synchronized void onRestoreEnd(TopicPartition partition, String store, long count) {
            seconds = (System.nanoTime() - began) / 1e9;
            cpuSeconds = cpu() - beganCpu;
            left.countDown();
        }

        void await() throws Exception {
            if (!left.await(300, java.util.concurrent.TimeUnit.SECONDS)) {
                throw new IllegalStateException("the state was not restored");
            }
        }
    }
}
