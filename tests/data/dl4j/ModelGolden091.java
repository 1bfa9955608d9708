import org.deeplearning4j.nn.conf.*;
import org.deeplearning4j.nn.conf.layers.*;
import org.deeplearning4j.nn.multilayer.MultiLayerNetwork;
import org.deeplearning4j.nn.weights.WeightInit;
import org.deeplearning4j.util.ModelSerializer;
import org.nd4j.linalg.activations.Activation;
import org.nd4j.linalg.api.ndarray.INDArray;
import org.nd4j.linalg.dataset.DataSet;
import org.nd4j.linalg.factory.Nd4j;
import org.nd4j.linalg.learning.config.*;
import org.nd4j.linalg.lossfunctions.LossFunctions;
import java.io.*; import java.nio.file.*;
public class ModelGolden091 {
  static void save(String name, MultiLayerConfiguration conf, int nIn, int nOut, boolean fit) throws Exception {
    MultiLayerNetwork net = new MultiLayerNetwork(conf); net.init();
    INDArray x = Nd4j.linspace(-1, 1, 5*nIn).reshape(5, nIn);
    INDArray y = Nd4j.zeros(5, nOut); for (int i=0;i<5;i++) y.putScalar(i, i%nOut, 1.0);
    if (fit) for (int i=0;i<3;i++) net.fit(new DataSet(x,y));
    ModelSerializer.writeModel(net, new File(name + ".zip"), true);
    INDArray o = net.output(x).dup('c');
    StringBuilder s = new StringBuilder("{\"score\":" + net.score(new DataSet(x,y)) + ",\"output\":[");
    for (int i=0;i<o.length();i++) s.append(i>0?",":"").append(o.getDouble(i));
    s.append("],\"params\":[");
    INDArray p = net.params(); for (int i=0;i<p.length();i++) s.append(i>0?",":"").append(p.getDouble(i));
    s.append("]}");
    Files.write(Paths.get(name + ".json"), s.toString().getBytes());
  }
  public static void main(String[] a) throws Exception {
    save("mlp_091", new NeuralNetConfiguration.Builder().seed(12).updater(new Adam(0.05, 0.9, 0.999, 1e-8)).regularization(true).l2(1e-3).weightInit(WeightInit.XAVIER)
      .activation(Activation.TANH).list()
      .layer(0, new DenseLayer.Builder().nIn(4).nOut(6).build())
      .layer(1, new DenseLayer.Builder().nIn(6).nOut(5).activation(Activation.RELU).dropOut(0.8).updater(new Nesterovs(0.1, 0.8)).build())
      .layer(2, new OutputLayer.Builder(LossFunctions.LossFunction.MCXENT).nIn(5).nOut(3).activation(Activation.SOFTMAX).build())
      .build(), 4, 3, true);
    save("dbn_091", new NeuralNetConfiguration.Builder().seed(7).learningRate(0.1).updater(Updater.ADAGRAD).weightInit(WeightInit.UNIFORM).list()
      .layer(0, new RBM.Builder(RBM.HiddenUnit.BINARY, RBM.VisibleUnit.GAUSSIAN).nIn(4).nOut(6).k(2).build())
      .layer(1, new AutoEncoder.Builder().nIn(6).nOut(5).corruptionLevel(0.2).build())
      .layer(2, new OutputLayer.Builder(LossFunctions.LossFunction.NEGATIVELOGLIKELIHOOD).nIn(5).nOut(3).activation(Activation.SOFTMAX).build())
      .pretrain(false).backprop(true).build(), 4, 3, true);
    for (Updater u : new Updater[]{Updater.SGD, Updater.ADADELTA, Updater.RMSPROP, Updater.NADAM, Updater.ADAMAX, Updater.NONE, Updater.NESTEROVS, Updater.ADAM}) {
      save("updater_" + u.toString().toLowerCase() + "_091", new NeuralNetConfiguration.Builder().seed(7).learningRate(0.1).updater(u).list()
      .layer(0, new DenseLayer.Builder().nIn(2).nOut(2).activation(Activation.LEAKYRELU).l1(0.01).gradientNormalization(GradientNormalization.ClipL2PerLayer).build())
      .layer(1, new OutputLayer.Builder(LossFunctions.LossFunction.MSE).nIn(2).nOut(2).activation(Activation.IDENTITY).build())
      .build(), 2, 2, true);
    }
    for (org.nd4j.linalg.api.buffer.DataBuffer.Type t : new org.nd4j.linalg.api.buffer.DataBuffer.Type[]{org.nd4j.linalg.api.buffer.DataBuffer.Type.DOUBLE, org.nd4j.linalg.api.buffer.DataBuffer.Type.FLOAT}) {
      Nd4j.setDataType(t);
      for (char o : new char[]{'c','f'}) {
      DataOutputStream d = new DataOutputStream(new FileOutputStream("array_"+t+"_"+o+"_091.bin"));
      Nd4j.write(Nd4j.linspace(1,6,6).reshape('c',2,3).dup(o), d); d.close(); }
      DataOutputStream d = new DataOutputStream(new FileOutputStream("array_"+t+"_row_091.bin"));
      Nd4j.write(Nd4j.linspace(1,6,6), d); d.close();
    }
  }
}
