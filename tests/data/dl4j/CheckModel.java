import org.deeplearning4j.nn.multilayer.MultiLayerNetwork;
import org.deeplearning4j.util.ModelSerializer;
import org.nd4j.linalg.api.ndarray.INDArray;
import org.nd4j.linalg.dataset.DataSet;
import org.nd4j.linalg.factory.Nd4j;
import java.io.File;

/** Loads models (0.9.1 or 1.0.0 API) and prints what they answer, to compare with dl4jlegacy: java CheckModel nIn nOut zip... */
public class CheckModel {
  static String text(INDArray a) {
    if (a == null) return "[]";
    StringBuilder s = new StringBuilder("[");
    for (int i = 0; i < a.length(); i++) s.append(i > 0 ? "," : "").append(a.getDouble(i));
    return s.append("]").toString();
  }

  public static void main(String[] args) throws Exception {
    int nIn = Integer.parseInt(args[0]), nOut = Integer.parseInt(args[1]);
    for (int f = 2; f < args.length; f++) try {
      MultiLayerNetwork net = ModelSerializer.restoreMultiLayerNetwork(new File(args[f]), true);
      INDArray x = Nd4j.linspace(-1, 1, 5 * nIn).reshape(5, nIn), y = Nd4j.zeros(5, nOut);
      for (int i = 0; i < 5; i++) y.putScalar(i, i % nOut, 1.0);
      INDArray output = net.output(x).dup('c'), state = net.getUpdater() == null ? null : net.getUpdater().getStateViewArray();
      String before = "\"output\":" + text(output) + ",\"score\":" + net.score(new DataSet(x, y)) + ",\"updater_state\":" + text(state);
      net.fit(new DataSet(x, y));
      System.out.println("{\"file\":\"" + args[f] + "\"," + before + ",\"params_after_step\":" + text(net.params()) + "}");
    } catch (Throwable t) {
      System.out.println("{\"file\":\"" + args[f] + "\",\"error\":\"" + String.valueOf(t).replaceAll("[\\s\"]+", " ") + "\"}");
    }
  }
}
