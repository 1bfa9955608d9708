import org.deeplearning4j.nn.conf.*;
import org.deeplearning4j.nn.conf.graph.*;
import org.deeplearning4j.nn.conf.layers.*;
import org.deeplearning4j.nn.graph.ComputationGraph;
import org.deeplearning4j.nn.weights.WeightInit;
import org.deeplearning4j.util.ModelSerializer;
import org.nd4j.linalg.activations.Activation;
import org.nd4j.linalg.lossfunctions.LossFunctions;
import org.nd4j.linalg.dataset.MultiDataSet;
import org.nd4j.linalg.learning.config.*;
import org.nd4j.linalg.factory.Nd4j;
import org.nd4j.linalg.api.ndarray.INDArray;
import java.util.*; import java.nio.file.*; import java.io.File;
public class GraphGolden {
  static String list(INDArray a) { StringBuilder s = new StringBuilder("["); INDArray f = a.dup('c').reshape('c', 1, a.length()); for (int i = 0; i < f.length(); i++) s.append(i > 0 ? "," : "").append(f.getDouble(i)); return s.append("]").toString(); }
  static INDArray grid(int rows, int columns, double shift) { INDArray a = Nd4j.zeros(rows, columns); for (int i = 0; i < rows; i++) for (int j = 0; j < columns; j++) a.putScalar(i, j, Math.sin(i * 1.3 + j * 0.7 + shift)); return a; }
  static INDArray onehot(int rows, int columns, int shift) { INDArray a = Nd4j.zeros(rows, columns); for (int i = 0; i < rows; i++) a.putScalar(i, (i + shift) % columns, 1); return a; }
  public static void main(String[] args) throws Exception {
    String v = args[0];
    NeuralNetConfiguration.Builder b = new NeuralNetConfiguration.Builder().seed(7).activation(Activation.TANH).weightInit(WeightInit.XAVIER).updater(new Adam(0.01, 0.9, 0.999, 1e-8)).l2(1e-3);
    if (v.equals("091")) NeuralNetConfiguration.Builder.class.getMethod("regularization", boolean.class).invoke(b, true);
    ComputationGraphConfiguration conf = b.graphBuilder()
      .addInputs("left", "right")
      .addLayer("zeta", new DenseLayer.Builder().nIn(4).nOut(6).build(), "left")
      .addLayer("alpha", new DenseLayer.Builder().nIn(5).nOut(6).activation(Activation.SIGMOID).build(), "right")
      .addVertex("sum", new ElementWiseVertex(ElementWiseVertex.Op.Add), "zeta", "alpha")
      .addVertex("product", new ElementWiseVertex(ElementWiseVertex.Op.Product), "zeta", "alpha")
      .addVertex("difference", new ElementWiseVertex(ElementWiseVertex.Op.Subtract), "alpha", "zeta")
      .addVertex("merged", new MergeVertex(), "sum", "product")
      .addVertex("part", new SubsetVertex(2, 8), "merged")
      .addVertex("scaled", new ScaleVertex(1.5), "part")
      .addVertex("shifted", new ShiftVertex(0.25), "scaled")
      .addVertex("normal", new L2NormalizeVertex(), "shifted")
      .addVertex("distance", new L2Vertex(), "zeta", "alpha")
      .addVertex("stacked", new StackVertex(), "zeta", "difference")
      .addLayer("shared", new DenseLayer.Builder().nIn(6).nOut(3).build(), "stacked")
      .addVertex("first", new UnstackVertex(0, 2), "shared")
      .addVertex("second", new UnstackVertex(1, 2), "shared")
      .addLayer("outA", new OutputLayer.Builder(LossFunctions.LossFunction.MCXENT).nIn(10).nOut(3).activation(Activation.SOFTMAX).build(), "normal", "first")
      .addLayer("outB", new OutputLayer.Builder(LossFunctions.LossFunction.MSE).nIn(4).nOut(2).activation(Activation.IDENTITY).build(), "second", "distance")
      .setOutputs("outA", "outB").build();
    ComputationGraph net = new ComputationGraph(conf); net.init();
    MultiDataSet data = new MultiDataSet(new INDArray[]{grid(6,4,0), grid(6,5,1)}, new INDArray[]{onehot(6,3,0), grid(6,2,2)});
    for (int i = 0; i < 3; i++) net.fit(data);
    INDArray[] out = net.output(data.getFeatures(0), data.getFeatures(1));
    StringBuilder s = new StringBuilder("{\"order\": [");
    int[] order = net.topologicalSortOrder();
    for (int i = 0; i < order.length; i++) s.append(i > 0 ? ", " : "").append("\"" + net.getVertices()[order[i]].getVertexName() + "\"");
    s.append("],\n\"outA\": " + list(out[0]) + ",\n\"outB\": " + list(out[1]) + ",\n\"score\": " + net.score(data) + ",\n\"params\": " + list(net.params()) + ",\n\"updater_state\": " + list(net.getUpdater().getUpdaterStateViewArray()) + "}\n");
    Files.write(Paths.get("graph_" + v + ".json"), s.toString().getBytes("UTF-8"));
    ModelSerializer.writeModel(net, new File("graph_" + v + ".zip"), true);
    net.fit(data);
    Files.write(Paths.get("graph_" + v + "_next.json"), ("{\"params\": " + list(net.params()) + "}\n").getBytes("UTF-8"));
  }
}
