import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** A Java member of a group: says what it is assigned, one line each time; ends when its standard input ends. */
public class Member {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", args[1]);
        settings.put("partition.assignment.strategy", args[3]);
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("session.timeout.ms", "3000");
        settings.put("heartbeat.interval.ms", "200");
        settings.put("auto.offset.reset", "earliest");
        AtomicBoolean stop = new AtomicBoolean();
        Thread reader = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                }
            } catch (java.io.IOException gone) {
                System.err.println(gone);
            }
            stop.set(true);
        });
        reader.setDaemon(true);
        reader.start();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(List.of(args[2].split(",")), new ConsumerRebalanceListener() {
                public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                    say("revoked", partitions);
                }

                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                    say("assigned", partitions);
                }
            });
            while (!stop.get()) {
                consumer.poll(Duration.ofMillis(100));
            }
        }
    }

    private static void say(String what, Collection<TopicPartition> partitions) {
        System.out.println(what + " " + partitions.stream().map(Object::toString).sorted().collect(Collectors.joining(",")));
        System.out.flush();
    }
}
