import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.UUID;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsOptions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.TimeWindows;

/**
 * The counts and the join of benchmarks/time_apps.py in Kafka Streams, for a figure beside ours: arguments are the broker, the
 * form, "exactly" or "least", the folder for state, how many records there are, those that are to be processed before it counts,
 * and how many keys they have. It writes the records of benchmarks.time.write_input first. What it prints last is records per
 * CPU-second of this process, with all of the JVM's threads, from that count of committed records on to the last one.
 */
public class Time {
    static final int PARTITIONS = 8, APART_MS = 5;

    public static void main(String[] args) throws Exception {
        String broker = args[0], form = args[1], folder = args[3];
        boolean exactly = args[2].equals("exactly");
        long records = Long.parseLong(args[4]), before = Long.parseLong(args[5]), keys = Long.parseLong(args[6]);
        List<String> topics = form.equals("joining") ? List.of("events", "others") : List.of("events");
        write(broker, topics, records, keys);
        String application = "streams-" + form + "-" + UUID.randomUUID();
        Properties given = new Properties();
        given.put(StreamsConfig.APPLICATION_ID_CONFIG, application);
        given.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, broker);
        given.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, exactly ? StreamsConfig.EXACTLY_ONCE_V2 : StreamsConfig.AT_LEAST_ONCE);
        given.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        given.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1);
        given.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        given.put(StreamsConfig.STATE_DIR_CONFIG, folder);
        given.put("auto.offset.reset", "earliest");
        given.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        given.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.ByteArraySerde.class);
        StreamsBuilder builder = new StreamsBuilder();
        build(builder, form);
        KafkaStreams streams = new KafkaStreams(builder.build(), given);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
            return null;
        });
        streams.start();
        watch(broker, application, topics, before);
        Runtime.getRuntime().halt(0);
    }

    static void build(StreamsBuilder builder, String form) {
        Consumed<String, byte[]> consumed = Consumed.with(Serdes.String(), Serdes.ByteArray());
        KStream<String, byte[]> events = builder.stream("events", consumed);
        KGroupedStream<String, byte[]> grouped = events.groupByKey(Grouped.with(Serdes.String(), Serdes.ByteArray()));
        Duration minute = Duration.ofSeconds(60), ten = Duration.ofSeconds(10);
        switch (form) {
            case "plain" -> grouped.count();
            case "tumbling" -> grouped.windowedBy(TimeWindows.ofSizeWithNoGrace(minute)).count();
            case "hopping" -> grouped.windowedBy(TimeWindows.ofSizeWithNoGrace(minute).advanceBy(ten)).count();
            case "sessions" -> grouped.windowedBy(SessionWindows.ofInactivityGapWithNoGrace(Duration.ofSeconds(30))).count();
            default -> events
                .join(
                    builder.stream("others", consumed),
                    (one, other) -> one,
                    JoinWindows.ofTimeDifferenceWithNoGrace(ten),
                    StreamJoined.with(Serdes.String(), Serdes.ByteArray(), Serdes.ByteArray()))
                .to("pairs", Produced.with(Serdes.String(), Serdes.ByteArray()));
        }
    }

    /** The records of each topic in turn, as benchmarks.time.write_input has them. */
    static void write(String broker, List<String> topics, long records, long keys) throws Exception {
        Map<String, Object> at = Map.of("bootstrap.servers", broker, "linger.ms", 20, "batch.size", 1 << 16);
        try (Admin admin = Admin.create(at)) {
            List<NewTopic> made = new ArrayList<>();
            // Without it the broker deletes, half a minute later, records that are as old as their times say.
            Map<String, String> forever = Map.of("retention.ms", "-1");
            topics.forEach(topic -> made.add(new NewTopic(topic, PARTITIONS, (short) 1).configs(forever)));
            made.add(new NewTopic("pairs", PARTITIONS, (short) 1).configs(forever));
            admin.createTopics(made).all().get();
        }
        byte[] value = new byte[100];
        Arrays.fill(value, (byte) 'x');
        try (var producer = new KafkaProducer<>(at, new StringSerializer(), new ByteArraySerializer())) {
            for (long number = 0; number < records / topics.size(); number++) {
                String key = String.format("key-%012d", number * 7919 % keys);
                for (int one = 0; one < topics.size(); one++) {
                    long time = 1000 + number * topics.size() + one * APART_MS;
                    producer.send(new ProducerRecord<>(topics.get(one), null, time, key, value));
                }
            }
        }
    }

    /** Reads what is committed, until all is. */
    static void watch(String broker, String application, List<String> topics, long before) throws Exception {
        try (Admin admin = Admin.create(Map.<String, Object>of("bootstrap.servers", broker))) {
            Map<TopicPartition, OffsetSpec> asked = new HashMap<>();
            for (String topic : topics) {
                for (int number = 0; number < PARTITIONS; number++) {
                    asked.put(new TopicPartition(topic, number), OffsetSpec.latest());
                }
            }
            Map<TopicPartition, Long> ends = new HashMap<>();
            admin.listOffsets(asked).all().get().forEach((where, found) -> ends.put(where, found.offset()));
            long begun = -1;
            double began = 0;
            for (long deadline = System.nanoTime() + 300_000_000_000L; System.nanoTime() < deadline; Thread.sleep(50)) {
                long done = 0, left = 0;
                var committed = admin.listConsumerGroupOffsets(application, new ListConsumerGroupOffsetsOptions())
                    .partitionsToOffsetAndMetadata().get();
                for (var end : ends.entrySet()) {
                    var found = committed.get(end.getKey());
                    long offset = found == null ? 0 : found.offset();
                    done += offset;
                    left += end.getValue() - offset;
                }
                if (done > before && begun < 0) {
                    begun = done;
                    began = cpu();
                }
                if (left == 0 && begun >= 0) {
                    System.out.println((done - begun) / (cpu() - began));
                    return;
                }
            }
        }
        throw new IllegalStateException("not all of the records were committed in time");
    }

    /** CPU time of this process, in seconds. */
    static double cpu() {
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime() / 1e9;
    }
}
