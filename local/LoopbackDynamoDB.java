// Starts DynamoDB Local in memory, on loopback only: its own command line always listens on every interface.
// Run as a source file, `java -cp 'jars/*' LoopbackDynamoDB.java PORT`; uses public classes only and sends no telemetry.

import com.amazonaws.services.dynamodbv2.local.server.LocalDynamoDBRequestHandler;
import com.amazonaws.services.dynamodbv2.local.server.LocalDynamoDBServerHandler;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.handler.ContextHandler;

public final class LoopbackDynamoDB {
    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(arguments[0]);
        boolean inMemory = true;
        boolean sharedDb = true; // one set of tables, whatever access key or region a client signs with
        boolean delayTransientStatuses = false;
        var requests = new LocalDynamoDBRequestHandler(0, inMemory, null, sharedDb, delayTransientStatuses);
        var loopback = InetAddress.getByAddress("localhost", new byte[] {127, 0, 0, 1});
        var server = new Server(new InetSocketAddress(loopback, port));
        server.setHandler(new ContextHandler(new LocalDynamoDBServerHandler(requests, null), "/"));
        server.start();
        server.join();
    }
}
