// DynamoDB Local on 127.0.0.1, with two things that its command line lacks: shard rollover and the passing of hours.
//   java -Djava.library.path=$LIB -cp "$LIB/*" DynamoDbTestServer.java PORT CONTROL_PORT
//   POST http://127.0.0.1:CONTROL_PORT/rollover           closes every open shard and opens its child
//   POST http://127.0.0.1:CONTROL_PORT/dilate?hours=25&key=test1   makes the stream records of the databases of this
//                                                         access key that many hours older (24: trimmed)

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.lang.reflect.Field;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.eclipse.jetty.server.Connector;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import software.amazon.dynamodb.services.local.monitoring.Telemetry;
import software.amazon.dynamodb.services.local.server.DynamoDBProxyServer;
import software.amazon.dynamodb.services.local.server.LocalDynamoDBRequestHandler;
import software.amazon.dynamodb.services.local.server.LocalDynamoDBServerHandler;
import software.amazon.dynamodb.services.local.shared.access.AmazonDynamoDBLocal;

public class DynamoDbTestServer {
    private static final String LOOPBACK = "127.0.0.1";

    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(arguments[0]);
        int controlPort = Integer.parseInt(arguments[1]);
        Telemetry.configureTelemetry("SERVER", "IN_MEMORY", false);
        LocalDynamoDBRequestHandler handler = new LocalDynamoDBRequestHandler(0, true, null, false, false);
        DynamoDBProxyServer proxy = new DynamoDBProxyServer(port, new LocalDynamoDBServerHandler(handler, null));
        bindToLoopback(proxy);
        proxy.start();
        startControl(controlPort, databases(handler));
        System.out.println("ready");
        proxy.join();
    }

    /** The server listens on all interfaces and has no option against it. */
    private static void bindToLoopback(DynamoDBProxyServer proxy) throws Exception {
        for (Connector connector : ((Server) privateField(proxy, "server")).getConnectors()) {
            ((ServerConnector) connector).setHost(LOOPBACK);
        }
    }

    /** One database for each access key and region. */
    @SuppressWarnings("unchecked")
    private static Map<String, AmazonDynamoDBLocal> databases(LocalDynamoDBRequestHandler handler) throws Exception {
        return (Map<String, AmazonDynamoDBLocal>) privateField(handler, "dbRequestHandlers");
    }

    private static Object privateField(Object owner, String name) throws Exception {
        Field field = owner.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field.get(owner);
    }

    private static void startControl(int port, Map<String, AmazonDynamoDBLocal> databases) throws IOException {
        HttpServer control = HttpServer.create(new InetSocketAddress(LOOPBACK, port), 0);
        control.createContext("/rollover", exchange -> answer(exchange, () -> {
            databases.values().forEach(AmazonDynamoDBLocal::triggerShardRollovers);
            return databases.size();
        }));
        control.createContext("/dilate", exchange -> answer(exchange, () -> {
            String[] parts = exchange.getRequestURI().getQuery().substring("hours=".length()).split("&key=");
            long milliseconds = TimeUnit.HOURS.toMillis(Long.parseLong(parts[0]));
            List<String> names = databases.keySet().stream().filter(name -> name.startsWith(parts[1])).toList();
            names.forEach(name -> databases.get(name).dilateEventTimes(milliseconds));
            return names.size();
        }));
        control.start();
    }

    private interface Action {
        int run() throws Exception;
    }

    /** Answers with the number of databases, or with what went wrong. */
    private static void answer(HttpExchange exchange, Action action) throws IOException {
        int status = 200;
        String text;
        try {
            text = "ok " + action.run() + "\n";
        } catch (Throwable problem) {
            status = 500;
            text = problem + "\n";
        }
        byte[] body = text.getBytes(StandardCharsets.UTF_8);
        exchange.sendResponseHeaders(status, body.length);
        exchange.getResponseBody().write(body);
        exchange.close();
    }
}
