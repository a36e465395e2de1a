// A transactional producer, one order at a time.

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;

final class Transactions {
    private final Groups groups;
    private KafkaProducer<byte[], byte[]> producer;

    Transactions(Groups groups) {
        this.groups = groups;
    }

    void enter(Map<String, Lines.Order> orders) {
        orders.put("init", this::init);
        orders.put("begin", this::begin);
        orders.put("send", this::send);
        orders.put("add_offsets", this::addOffsets);
        orders.put("end", this::end);
        orders.put("retire", this::retire);
    }

    private Object init(JsonNode order) {
        Properties words = Settings.producer(order);
        words.put("transactional.id", order.get("id").asText());
        words.put("transaction.timeout.ms", order.get("timeout_ms").asInt());
        producer = new KafkaProducer<>(words);
        producer.initTransactions();
        return null;
    }

    private Object begin(JsonNode order) {
        producer.beginTransaction();
        return null;
    }

    private Object send(JsonNode order) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode line : order.get("records")) {
            sent.add(producer.send(new ProducerRecord<>(
                order.get("topic").asText(), line.get(0).asInt(), null, Lines.raw(line.get(1)))));
        }
        producer.flush();
        List<Object> placed = new ArrayList<>();
        for (Future<RecordMetadata> answer : sent) {
            placed.add(List.of(answer.get().partition(), answer.get().offset()));
        }
        return placed;
    }

    private Object addOffsets(JsonNode order) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (JsonNode line : order.get("offsets")) {
            offsets.put(
                new TopicPartition(line.get(0).asText(), line.get(1).asInt()),
                new OffsetAndMetadata(line.get(2).asLong()));
        }
        if (order.path("as_member").asBoolean()) {
            producer.sendOffsetsToTransaction(offsets, groups.membership());
            return null;
        }
        Properties words = Settings.consumer(order);
        words.put("group.id", order.get("group").asText());
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(words)) {
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
        }
        return null;
    }

    private Object end(JsonNode order) {
        if (order.get("commit").asBoolean()) {
            producer.commitTransaction();
        } else {
            producer.abortTransaction();
        }
        return null;
    }

    private Object retire(JsonNode order) {
        producer.close(Duration.ZERO);
        return null;
    }
}
