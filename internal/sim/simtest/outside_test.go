package simtest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/kubectl/pkg/drain"
)

// TestOutsideClients uses a lab served by recast lab up with other clients, like a user in
// another terminal.
func TestOutsideClients(t *testing.T) {
	long(t)
	t.Parallel()
	dir := labUp(t)
	t.Run("machinery", func(t *testing.T) { talksTalos(t, filepath.Join(dir, "talosconfig")) })
	t.Run("client-go and kubectl drain", func(t *testing.T) { drains(t, filepath.Join(dir, "kubeconfig")) })
}

// labUp builds recast, serves a lab with it until the test ends, and returns its working
// directory.
func labUp(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	binary := filepath.Join(dir, "recast")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../../../cmd/recast").CombinedOutput(); err != nil {
		t.Fatalf("build recast: %v\n%s", err, out)
	}
	lab := filepath.Join(dir, "lab")
	var out bytes.Buffer
	c := exec.CommandContext(t.Context(), binary, "lab", "up", "--dir", lab, "--speed", "40")
	c.Stdout, c.Stderr = &out, &out
	must(t, c.Start())
	t.Cleanup(func() {
		if err := c.Wait(); err == nil { // the test's context has killed it
			t.Logf("the lab ended by itself:\n%s", out.String())
		}
	})
	for range 1800 {
		if _, err := os.Stat(filepath.Join(lab, "lab.json")); err == nil {
			return lab
		}
		<-time.After(100 * time.Millisecond) // waiting for another process
	}
	t.Fatal("the lab never got ready")
	return ""
}

func talksTalos(t *testing.T, talosconfig string) {
	config := valueOf(clientconfig.Open(talosconfig))(t)
	c := valueOf(client.New(t.Context(), client.WithConfig(config)))(t)
	defer c.Close()
	version := valueOf(c.Version(t.Context()))(t)
	requireSame(t, "v1.13.9", version.GetMessages()[0].GetVersion().GetTag(), "Talos (-want +got)")
	extensions := valueOf(safe.StateListAll[*runtime.ExtensionStatus](t.Context(), c.COSI))(t)
	require(t, extensions.Len() >= 2, "%d extensions", extensions.Len())
}

func drains(t *testing.T, kubeconfig string) {
	config := valueOf(clientcmd.BuildConfigFromFlags("", kubeconfig))(t)
	api := valueOf(kubernetes.NewForConfig(config))(t)
	node := valueOf(api.CoreV1().Nodes().Get(t.Context(), "wk1", metav1.GetOptions{}))(t)
	helper := &drain.Helper{
		Ctx: t.Context(), Client: api, Timeout: time.Minute, GracePeriodSeconds: -1, IgnoreAllDaemonSets: true, DeleteEmptyDirData: true,
		EvictErrorRetryDelay: 100 * time.Millisecond, Out: t.Output(), ErrOut: t.Output(),
	}
	must(t, drain.RunCordonOrUncordon(helper, node, true))
	must(t, drain.RunNodeDrain(helper, "wk1"))
	pods := valueOf(api.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=wk1"}))(t)
	for _, p := range pods.Items {
		require(t, len(p.OwnerReferences) != 0 && p.OwnerReferences[0].Kind == "DaemonSet", "pod %s is still there", p.Name)
	}
}
