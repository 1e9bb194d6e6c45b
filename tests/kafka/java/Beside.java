import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;

/**
 * Kafka's own clients beside ours, for tests/kafka/test_java.py. `write ADDRESS TOPIC`: records of every codec, with aborted
 * ones between; prints key, partition and codec of those that count. `lag ADDRESS GROUP TOPIC`: what the group has committed of
 * partition 0, and where it ends, as kafka-consumer-groups finds them. `streams ADDRESS ID FOLDER STREAM TABLE`: a Kafka
 * Streams app over both; prints what it sees until it is ended.
 */
public class Beside {
    private static final String[] CODECS = {"none", "gzip", "snappy", "lz4", "zstd"};

    public static void main(String[] args) throws Exception {
        switch (args[0]) {
            case "write" -> write(args[1], args[2]);
            case "lag" -> lag(args[1], args[2], args[3]);
            default -> streams(args);
        }
    }

    private static void write(String address, String topic) throws Exception {
        for (String codec : CODECS) {
            Properties with = new Properties();
            with.put("bootstrap.servers", address);
            with.put("compression.type", codec);
            with.put("transactional.id", topic + codec);
            try (var producer = new KafkaProducer<>(with, new StringSerializer(), new StringSerializer())) {
                producer.initTransactions();
                for (int turn = 0; turn < 3; turn++) {
                    producer.beginTransaction();
                    for (int number = 0; number < 20; number++) {
                        String key = codec + "-" + turn + "-" + number;
                        var record = new ProducerRecord<>(topic, key, number % 5 == 0 ? null : "v".repeat(50) + number);
                        record.headers().add(new RecordHeader("codec", codec.getBytes(StandardCharsets.UTF_8)));
                        var sent = producer.send(record);
                        if (turn != 1) {
                            System.out.println(key + " " + sent.get().partition());
                        }
                    }
                    if (turn == 1) {
                        producer.flush();
                        producer.abortTransaction();
                    } else {
                        producer.commitTransaction();
                    }
                }
            }
        }
    }

    private static void lag(String address, String group, String topic) throws Exception {
        TopicPartition where = new TopicPartition(topic, 0);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", address))) {
            Map<TopicPartition, OffsetAndMetadata> found =
                    admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
            long end = admin.listOffsets(Map.of(where, OffsetSpec.latest())).all().get().get(where).offset();
            System.out.println(found.get(where).offset() + " " + end);
        }
    }

    private static void streams(String[] args) {
        Properties with = new Properties();
        with.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[1]);
        with.put(StreamsConfig.APPLICATION_ID_CONFIG, args[2]);
        with.put(StreamsConfig.STATE_DIR_CONFIG, args[3]);
        with.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        with.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        var builder = new StreamsBuilder();
        var strings = Consumed.with(Serdes.String(), Serdes.String());
        builder.stream(args[4], strings).foreach((key, value) -> System.out.println("stream " + key + " " + value));
        builder.table(args[5], strings)
                .toStream()
                .foreach((key, value) -> System.out.println("table " + key + " " + value));
        var running = new KafkaStreams(builder.build(), with);
        Runtime.getRuntime().addShutdownHook(new Thread(running::close));
        running.start();
    }
}
