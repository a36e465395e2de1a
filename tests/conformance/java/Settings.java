// What the table's settings, which are librdkafka's, are called in Java.

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

final class Settings {
    // An empty name is a setting that Java has no word for and does well without.
    private static final Map<String, String> WORDS = Map.of(
        "message.max.bytes", "max.request.size",
        "batch.num.messages", "",
        "message.timeout.ms", "delivery.timeout.ms",
        "fetch.wait.max.ms", "fetch.max.wait.ms");
    private static final Map<String, String> ASSIGNORS = Map.of(
        "range", "RangeAssignor",
        "roundrobin", "RoundRobinAssignor",
        "sticky", "StickyAssignor",
        "cooperative-sticky", "CooperativeStickyAssignor");
    // The largest record of the table with room to spare; what it may weigh is the broker's to say.
    private static final int REQUEST_SIZE_MAX = 32 << 20;

    private Settings() {}

    static Properties producer(JsonNode order) {
        Properties words = quick(order);
        words.put("key.serializer", ByteArraySerializer.class);
        words.put("value.serializer", ByteArraySerializer.class);
        words.put("acks", "all");
        words.put("linger.ms", 0);
        words.put("max.request.size", REQUEST_SIZE_MAX);
        words.put("max.block.ms", 20_000);
        translate(order, words);
        if (words.containsKey("delivery.timeout.ms")) {
            int patience = Integer.parseInt(words.getProperty("delivery.timeout.ms"));
            words.put("request.timeout.ms", patience / 2);
        }
        return words;
    }

    static Properties consumer(JsonNode order) {
        Properties words = quick(order);
        words.put("key.deserializer", ByteArrayDeserializer.class);
        words.put("value.deserializer", ByteArrayDeserializer.class);
        words.put("fetch.max.wait.ms", 10);
        words.put("allow.auto.create.topics", false);
        translate(order, words);
        words.remove("max.request.size");
        return words;
    }

    static Properties quick(JsonNode order) {
        Properties words = new Properties();
        words.put("bootstrap.servers", order.get("bootstrap").asText());
        words.put("reconnect.backoff.ms", 10);
        words.put("reconnect.backoff.max.ms", 50);
        words.put("retry.backoff.ms", 10);
        return words;
    }

    private static void translate(JsonNode order, Properties words) {
        JsonNode settings = order.path("settings");
        settings.properties().forEach(setting -> {
            String name = setting.getKey();
            String value = setting.getValue().asText();
            if (name.equals("partition.assignment.strategy")) {
                value = "org.apache.kafka.clients.consumer." + ASSIGNORS.get(value);
            } else if (name.equals("auto.offset.reset") && value.equals("error")) {
                value = "none";
            }
            String word = WORDS.getOrDefault(name, name);
            if (!word.isEmpty()) {
                words.put(word, value);
            }
        });
    }
}
