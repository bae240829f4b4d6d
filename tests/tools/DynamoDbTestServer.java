// DynamoDB Local on 127.0.0.1, with what its command line lacks: shard rollover, the passing of hours, and an end of
// databases that nobody needs any more. It keeps one, with four threads and more that poll it, for each access key.
//   java -Djava.library.path=$LIB -cp "$LIB/*" DynamoDbTestServer.java PORT CONTROL_PORT
// Each request is about the databases whose access key begins so, and is answered with their number:
//   POST http://127.0.0.1:CONTROL_PORT/rollover?key=test1         closes every open shard and opens its child
//   POST http://127.0.0.1:CONTROL_PORT/dilate?hours=25&key=test1  makes their stream records that many hours older
//                                                                 (24: trimmed)
//   POST http://127.0.0.1:CONTROL_PORT/forget?key=test1           ends them

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
        startControl(controlPort, new Databases(handler));
        System.out.println("ready");
        proxy.join();
    }

    /** The server listens on all interfaces and has no option against it. */
    private static void bindToLoopback(DynamoDBProxyServer proxy) throws Exception {
        for (Connector connector : ((Server) privateField(proxy, "server")).getConnectors()) {
            ((ServerConnector) connector).setHost(LOOPBACK);
        }
    }

    /** One for each access key and region. */
    private static class Databases {
        private final LocalDynamoDBRequestHandler handler;
        private final Map<String, AmazonDynamoDBLocal> byName;

        @SuppressWarnings("unchecked")
        Databases(LocalDynamoDBRequestHandler handler) throws Exception {
            this.handler = handler;
            byName = (Map<String, AmazonDynamoDBLocal>) privateField(handler, "dbRequestHandlers");
        }

        private List<String> names(String key) {
            return byName.keySet().stream().filter(name -> name.startsWith(key)).toList();
        }

        List<AmazonDynamoDBLocal> of(String key) {
            synchronized (handler) { // it makes databases under the same lock
                return names(key).stream().map(byName::get).toList();
            }
        }

        List<AmazonDynamoDBLocal> removed(String key) {
            synchronized (handler) {
                return names(key).stream().map(byName::remove).toList();
            }
        }
    }

    private static Object privateField(Object owner, String name) throws Exception {
        Field field = owner.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field.get(owner);
    }

    private static void startControl(int port, Databases databases) throws IOException {
        HttpServer control = HttpServer.create(new InetSocketAddress(LOOPBACK, port), 0);
        control.createContext("/rollover", exchange -> answer(exchange, () -> {
            List<AmazonDynamoDBLocal> found = databases.of(argument(exchange, "key"));
            found.forEach(AmazonDynamoDBLocal::triggerShardRollovers);
            return found.size();
        }));
        control.createContext("/dilate", exchange -> answer(exchange, () -> {
            long milliseconds = TimeUnit.HOURS.toMillis(Long.parseLong(argument(exchange, "hours")));
            List<AmazonDynamoDBLocal> found = databases.of(argument(exchange, "key"));
            found.forEach(database -> database.dilateEventTimes(milliseconds));
            return found.size();
        }));
        control.createContext("/forget", exchange -> answer(exchange, () -> {
            List<AmazonDynamoDBLocal> removed = databases.removed(argument(exchange, "key"));
            removed.forEach(AmazonDynamoDBLocal::shutdownNow);
            return removed.size();
        }));
        control.start();
    }

    /** The value of NAME=VALUE in the query. */
    private static String argument(HttpExchange exchange, String name) {
        for (String pair : exchange.getRequestURI().getQuery().split("&")) {
            if (pair.startsWith(name + "=")) {
                return pair.substring(name.length() + 1);
            }
        }
        throw new IllegalArgumentException("no " + name + "= in the query");
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
