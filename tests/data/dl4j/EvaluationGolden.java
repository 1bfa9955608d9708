import org.nd4j.evaluation.classification.Evaluation;
import org.nd4j.evaluation.EvaluationAveraging;
import org.nd4j.linalg.factory.Nd4j;
import org.nd4j.linalg.api.ndarray.INDArray;
import java.util.*; import java.nio.file.*;
public class EvaluationGolden {
  static void run(String name, int n, int top, List<String> names, int[] a, int[] p) throws Exception {
    Evaluation e = names != null ? new Evaluation(names, top) : (top > 1 ? new Evaluation(null, top) : new Evaluation(n));
    INDArray l = Nd4j.zeros(a.length, n), o = Nd4j.zeros(a.length, n);
    for (int i=0;i<a.length;i++){ l.putScalar(i,a[i],1.0); for(int j=0;j<n;j++) o.putScalar(i,j, ((i*7+j*3)%5)*0.01); o.putScalar(i,p[i],0.9);}    
    e.eval(l,o);
    Files.write(Paths.get("evaluation_"+name+".txt"), e.stats().getBytes("UTF-8"));
    StringBuilder s=new StringBuilder("{");
    s.append("\"accuracy\":"+e.accuracy()+",\"topn\":"+e.topNAccuracy());
    for (EvaluationAveraging v: EvaluationAveraging.values()) {
      s.append(",\"precision_"+v+"\":\""+e.precision(v)+"\",\"recall_"+v+"\":\""+e.recall(v)+"\",\"f1_"+v+"\":\""+e.f1(v)+"\",\"fbeta2_"+v+"\":\""+e.fBeta(2.0,v)+"\",\"g_"+v+"\":\""+e.gMeasure(v)+"\",\"mcc_"+v+"\":\""+e.matthewsCorrelation(v)+"\",\"fpr_"+v+"\":\""+e.falsePositiveRate(v)+"\",\"fnr_"+v+"\":\""+e.falseNegativeRate(v)+"\"");
    }
    s.append(",\"precision\":"+e.precision()+",\"recall\":"+e.recall()+",\"f1\":"+e.f1()+",\"far\":"+e.falseAlarmRate());
    s.append("}");
    Files.write(Paths.get("evaluation_"+name+".json"), s.toString().getBytes("UTF-8"));
  }
  public static void main(String[] x) throws Exception {
    run("three", 3, 1, null, new int[]{0,0,1,1,1,2,2,2,2,0}, new int[]{0,0,1,2,1,2,2,2,0,1});
    run("two", 2, 1, Arrays.asList("no","yes"), new int[]{0,0,1,1,1,0,1}, new int[]{0,1,1,1,0,0,1});
    run("excluded", 5, 1, null, new int[]{0,0,1,1,2,2}, new int[]{0,1,1,1,0,4});
    int[] a=new int[300], p=new int[300]; for(int i=0;i<300;i++){a[i]=(i*i+3*i)%10; p[i]= i%7==0?(i%10):a[i];}
    run("ten_top3", 10, 3, Arrays.asList("zero","one","two","three","four","five","six","seven","eight","nine"), a,p);
    int[] b=new int[50], q=new int[50]; for(int i=0;i<50;i++){b[i]=i%23; q[i]=i%11==0?(i%23+1)%25:b[i];}
    run("many", 25, 1, null, b,q);
  }
}
