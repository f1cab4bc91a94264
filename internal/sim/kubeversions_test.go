package sim_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/google/go-cmp/cmp"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	configres "github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// reconfigure replaces a part of a machine's configuration, without a reboot.
func reconfigure(t *testing.T, c *client.Client, old, fresh string) {
	t.Helper()
	mc, err := safe.StateGetByID[*configres.MachineConfig](t.Context(), c.COSI, configres.ActiveID)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := mc.Provider().Bytes()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(raw, []byte(old)) {
		t.Fatalf("the configuration has no %s", old)
	}
	_, err = c.ApplyConfiguration(t.Context(), &machineapi.ApplyConfigurationRequest{
		Data: bytes.ReplaceAll(raw, []byte(old), []byte(fresh)), Mode: machineapi.ApplyConfigurationRequest_NO_REBOOT,
	})
	if err != nil {
		t.Fatal(err)
	}
}

// machineClient is a Talos client of one machine.
func machineClient(t *testing.T, lab *sim.Lab, node string) *client.Client {
	t.Helper()
	files, err := lab.Files()
	if err != nil {
		t.Fatal(err)
	}
	conf, err := clientconfig.FromBytes(files["talosconfig"])
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(lab.Nodes, func(n sim.Node) bool { return n.Name == node })
	d := lab.Client()
	c, err := client.New(t.Context(), client.WithConfig(conf), client.WithEndpoints(lab.Nodes[i].Addr.String()), client.WithGRPCDialOptions(
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) })))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // the lab is closed first
	return c
}

// mirror is the mirror pod of one of cp1's static pods.
func mirror(t *testing.T, c *kubernetes.Clientset, component string) (*corev1.Pod, string) {
	t.Helper()
	p, err := c.CoreV1().Pods("kube-system").Get(t.Context(), component+"-cp1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var line strings.Builder
	line.WriteString(fmt.Sprint(strings.TrimPrefix(p.Spec.Containers[0].Image, "registry.k8s.io/"), " config ", p.Annotations["talos.dev/config-version"]))
	for _, cond := range p.Status.Conditions {
		if cond.Type == corev1.PodReady {
			line.WriteString(" ready " + string(cond.Status))
		}
	}
	for _, s := range p.Status.ContainerStatuses {
		if s.State.Waiting != nil {
			line.WriteString(" " + s.State.Waiting.Reason)
		}
	}
	return p, line.String()
}

// TestKubernetesVersionsFollowTheConfiguration: without a reboot, each component takes the
// version that the machine configuration names a while after it has changed.
func TestKubernetesVersionsFollowTheConfiguration(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	t.Parallel()
	for _, talos := range []string{"v1.12.9", "v1.13.9", "v1.14.1"} {
		t.Run(talos, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { followsConfiguration(t, talos) })
		})
	}
}

func followsConfiguration(t *testing.T, talos string) {
	lab := start(t, sim.Options{TalosVersion: talos, Workers: 1}, true)
	time.Sleep(time.Minute)
	k, c := kubernetesClient(t, lab), machineClient(t, lab, "cp1")
	version := func() string {
		v, err := k.ServerVersion()
		if err != nil {
			return "nobody"
		}
		return v.GitVersion
	}
	before, line := mirror(t, k, "kube-apiserver")
	if want := "kube-apiserver:v1.35.4 config 1 ready True"; line != want || version() != "v1.35.4" {
		t.Errorf("at first %q, want %q; API server %s", line, want, version())
	}
	reconfigure(t, c, "kube-apiserver:v1.35.4", "kube-apiserver:v1.36.1")
	pod, err := safe.StateGetByID[*k8s.StaticPod](t.Context(), c.COSI, "kube-apiserver")
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(pod.TypedSpec().Pod["spec"]); !strings.Contains(got, "kube-apiserver:v1.36.1") {
		t.Errorf("rendered %s", got)
	}
	var seen []string
	for range 80 {
		if v := version(); len(seen) == 0 || seen[len(seen)-1] != v {
			seen = append(seen, v)
		}
		time.Sleep(time.Second)
	}
	if diff := cmp.Diff([]string{"v1.35.4", "nobody", "v1.36.1"}, seen); diff != "" {
		t.Errorf("API servers that answered (-want +got):\n%s", diff)
	}
	after, line := mirror(t, k, "kube-apiserver")
	if want := "kube-apiserver:v1.36.1 config 2 ready True"; line != want || before.UID == after.UID {
		t.Errorf("then %q, want %q; UIDs %s %s", line, want, before.UID, after.UID)
	}
	if _, line := mirror(t, k, "kube-scheduler"); line != "kube-scheduler:v1.35.4 config 1 ready True" {
		t.Errorf("the scheduler is %q", line)
	}
	kubeletFollows(t, lab, k)
}

// kubeletFollows changes the worker's kubelet version.
func kubeletFollows(t *testing.T, lab *sim.Lab, k *kubernetes.Clientset) {
	t.Helper()
	before, err := k.CoreV1().Nodes().Get(t.Context(), "wk1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	reconfigure(t, machineClient(t, lab, "wk1"), "kubelet:v1.35.4", "kubelet:v1.36.1")
	var seen []string
	for range 60 {
		n, err := k.CoreV1().Nodes().Get(t.Context(), "wk1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		version, ready := nodeState(t, k, "wk1")
		if line := version + " " + string(ready); len(seen) == 0 || seen[len(seen)-1] != line {
			seen = append(seen, line)
		}
		if n.UID != before.UID || n.Status.NodeInfo.BootID != before.Status.NodeInfo.BootID {
			t.Fatal("the machine was booted")
		}
		time.Sleep(time.Second)
	}
	if diff := cmp.Diff([]string{"v1.35.4 True", "v1.36.1 False", "v1.36.1 True"}, seen); diff != "" {
		t.Errorf("Node (-want +got):\n%s", diff)
	}
}

// TestKubernetesImagesInTrouble: how a component with a bad image fails, and that the old
// image repairs it.
func TestKubernetesImagesInTrouble(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	t.Parallel()
	const fresh = "registry.k8s.io/kube-scheduler:v1.36.1"
	for name, c := range map[string]struct {
		version string
		defect  talosapi.Defect
		after   time.Duration
		want    string
	}{
		"not there":     {"v1.36.99", talosapi.Sound, 40 * time.Second, "kube-scheduler:v1.36.99 config 2 ready False ImagePullBackOff"},
		"unpullable":    {"v1.36.1", talosapi.Unpullable, 40 * time.Second, "kube-scheduler:v1.36.1 config 2 ready False ImagePullBackOff"},
		"never arrives": {"v1.36.1", talosapi.Endless, time.Hour, "kube-scheduler:v1.36.1 config 2 ready False ContainerCreating"},
		"never ready":   {"v1.36.1", talosapi.Unready, time.Hour, "kube-scheduler:v1.36.1 config 2 ready False"},
		"ends at once":  {"v1.36.1", talosapi.Loops, time.Minute, "kube-scheduler:v1.36.1 config 2 ready False CrashLoopBackOff"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				lab := start(t, sim.Options{Workers: 1}, true)
				k, machine := kubernetesClient(t, lab), machineClient(t, lab, "cp1")
				if err := lab.Trouble("cp1", talosapi.Trouble{Images: map[string]talosapi.Defect{fresh: c.defect}}); err != nil {
					t.Fatal(err)
				}
				reconfigure(t, machine, "kube-scheduler:v1.35.4", "kube-scheduler:"+c.version)
				time.Sleep(c.after)
				if _, line := mirror(t, k, "kube-scheduler"); line != c.want {
					t.Errorf("got %q, want %q", line, c.want)
				}
				reconfigure(t, machine, "kube-scheduler:"+c.version, "kube-scheduler:v1.35.4")
				time.Sleep(time.Minute)
				if _, line := mirror(t, k, "kube-scheduler"); line != "kube-scheduler:v1.35.4 config 3 ready True" {
					t.Errorf("mended: %q", line)
				}
			})
		})
	}
}
