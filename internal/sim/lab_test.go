package sim_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	configres "github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
)

func TestLabComesUpAndGoesDown(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		lab := start(t, sim.Options{Hosts: 2}, true)
		files := must.Get(lab.Files())(t)
		names := slices.Sorted(maps.Keys(files))
		want := []string{"kubeconfig", "recast.yaml", "schematics/default.yaml", "schematics/storage.yaml", "talosconfig"}
		must.Hold(t, slices.Equal(names, want), "files %q", names)
		v := lab.World.Violations()
		must.Hold(t, len(v) == 0, "promises broken before anything was done: %q", v)
		must.Equal(t, "persistent disks", 2, len(lab.Disks()))
	})
}

func TestLabRefusesWhatItCannotHold(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]sim.Options{
		"hosts":  {Prefix: "127.42.7", Hosts: 10},
		"prefix": {Prefix: "lab"},
		"many":   {Prefix: "127.42.7", Workers: 1001},
		"end":    {Prefix: "127.42.254", Workers: 500},
	} {
		o.Network = network.Memory()
		if lab, err := sim.New(t.Context(), o); err == nil {
			t.Errorf("%s: %v", name, lab.Close())
		}
	}
}

// TestHostsReachTheFactory: a Proxmox node downloads from the lab's Image Factory, unless it has no route to it.
func TestHostsReachTheFactory(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		lab := start(t, sim.Options{}, false)
		for name, want := range map[string]string{"open.iso": "OK", "walled.iso": "download failed: failed: Network is unreachable."} {
			lab.World.SetOutbound("pve1", want == "OK")
			upid, err := lab.World.Download("", "pve1", world.DownloadRequest{
				Storage: sim.ISOStorage, Content: "iso", Filename: name, URL: "http://127.0.0.1:8080/versions",
			})
			must.Do(t, err)
			task, _ := lab.World.WaitTask(upid)
			must.Hold(t, task.ExitStatus == want, "%s: %s, want %s", name, task.ExitStatus, want)
			must.Equal(t, name+": stored", want == "OK", lab.World.Media(sim.ISOStorage+":iso/"+name, "pve1") != nil)
		}
	})
}

// TestKubeletInTrouble: if a kubelet does not come back, its Node becomes NotReady while
// its pods keep running; the old image repairs it.
func TestKubeletInTrouble(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	t.Parallel()
	type row struct {
		version string
		defect  talosapi.Defect
		want    string // state of the service and its last event
	}
	must.Bubbles(t, map[string]row{
		"not there":     {"v1.36.99", talosapi.Sound, "Failed Failed to run pre stage: "},
		"never arrives": {"v1.36.1", talosapi.Endless, "Preparing Running pre state"},
		"never ready":   {"v1.36.1", talosapi.Unready, "Running Health check failed: "},
	}, func(t *testing.T, c row) {
		lab := start(t, sim.Options{Workers: 1}, true)
		k, machine := kubernetesClient(t, lab), machineClient(t, lab, "wk1")
		image := "ghcr.io/siderolabs/kubelet:" + c.version
		must.Do(t, lab.Trouble("wk1", talosapi.Trouble{Images: map[string]talosapi.Defect{image: c.defect}}))
		reconfigure(t, machine, "kubelet:v1.35.4", "kubelet:"+c.version)
		time.Sleep(10 * time.Minute)
		got := kubeletState(t, machine)
		must.Hold(t, strings.HasPrefix(got, c.want), "the service is %q, want %q", got, c.want)
		version, ready := nodeState(t, k, "wk1")
		must.Hold(t, version == "v1.35.4" && ready == corev1.ConditionUnknown, "Node %s, ready %s", version, ready)
		reconfigure(t, machine, "kubelet:"+c.version, "kubelet:v1.35.4")
		time.Sleep(time.Minute)
		if version, ready := nodeState(t, k, "wk1"); version != "v1.35.4" || ready != corev1.ConditionTrue {
			t.Errorf("mended: Node %s, ready %s, service %s", version, ready, kubeletState(t, machine))
		}
	})
}

func kubeletState(t *testing.T, c *client.Client) string {
	t.Helper()
	infos, err := c.ServiceInfo(t.Context(), "kubelet")
	must.Be(t, err == nil && len(infos) == 1, "%v, %v", infos, err)
	events := infos[0].Service.GetEvents().GetEvents()
	return infos[0].Service.GetState() + " " + events[len(events)-1].GetMsg()
}

func nodeState(t *testing.T, k *kubernetes.Clientset, name string) (version string, ready corev1.ConditionStatus) {
	t.Helper()
	n := must.Get(k.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{}))(t)
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			ready = c.Status
		}
	}
	return n.Status.NodeInfo.KubeletVersion, ready
}

// TestAPIServerNeverReady: if one API server starts but never answers, the cluster keeps
// the others; before Talos 1.14 nothing probes its container, so it counts as ready.
func TestAPIServerNeverReady(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	t.Parallel()
	const image = "registry.k8s.io/kube-apiserver:v1.36.1"
	for talos, ready := range map[string]string{"v1.13.9": "True", "v1.14.1": "False"} {
		t.Run(talos, func(t *testing.T) {
			must.Bubble(t, func(t *testing.T) {
				lab := start(t, sim.Options{TalosVersion: talos, ControlPlanes: 3, Workers: 1}, true)
				time.Sleep(time.Minute)
				k, machine := kubernetesClient(t, lab), machineClient(t, lab, "cp1")
				lab.BreakImage(image, talosapi.Unready)
				reconfigure(t, machine, "kube-apiserver:v1.35.4", "kube-apiserver:v1.36.1")
				time.Sleep(5 * time.Minute)
				_, line := mirror(t, k, "kube-apiserver")
				must.Hold(t, line == "kube-apiserver:v1.36.1 config 2 ready "+ready, "got %q", line)
				v, err := k.ServerVersion()
				must.Hold(t, err == nil && v.GitVersion == "v1.35.4", "the others: %v, %v", v, err)
				lab.BreakImage(image, talosapi.Sound)
				reconfigure(t, machine, "kube-apiserver:v1.36.1", "kube-apiserver:v1.35.4")
				time.Sleep(time.Minute)
				if _, line := mirror(t, k, "kube-apiserver"); line != "kube-apiserver:v1.35.4 config 3 ready True" {
					t.Errorf("mended: %q", line)
				}
			})
		})
	}
}

// reconfigure replaces a part of a machine's configuration, without a reboot.
func reconfigure(t *testing.T, c *client.Client, old, fresh string) {
	t.Helper()
	mc := must.Get(safe.StateGetByID[*configres.MachineConfig](t.Context(), c.COSI, configres.ActiveID))(t)
	raw, err := mc.Provider().Bytes()
	must.Do(t, err)
	must.Be(t, bytes.Contains(raw, []byte(old)), "the configuration has no %s", old)
	_, err = c.ApplyConfiguration(t.Context(), &machineapi.ApplyConfigurationRequest{
		Data: bytes.ReplaceAll(raw, []byte(old), []byte(fresh)), Mode: machineapi.ApplyConfigurationRequest_NO_REBOOT,
	})
	must.Do(t, err)
}

// machineClient is a Talos client of one machine.
func machineClient(t *testing.T, lab *sim.Lab, node string) *client.Client {
	t.Helper()
	files := must.Get(lab.Files())(t)
	conf := must.Get(clientconfig.FromBytes(files["talosconfig"]))(t)
	i := slices.IndexFunc(lab.Nodes, func(n sim.Node) bool { return n.Name == node })
	d := lab.Client()
	c, err := client.New(t.Context(), client.WithConfig(conf), client.WithEndpoints(lab.Nodes[i].Addr.String()), client.WithGRPCDialOptions(
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) })))
	must.Do(t, err)
	t.Cleanup(func() { _ = c.Close() }) // the lab is closed first
	return c
}

// mirror is the mirror pod of one of cp1's static pods.
func mirror(t *testing.T, c *kubernetes.Clientset, component string) (*corev1.Pod, string) {
	t.Helper()
	p := must.Get(c.CoreV1().Pods("kube-system").Get(t.Context(), component+"-cp1", metav1.GetOptions{}))(t)
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
			must.Bubble(t, func(t *testing.T) { followsConfiguration(t, talos) })
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
	want := "kube-apiserver:v1.35.4 config 1 ready True"
	must.Hold(t, line == want && version() == "v1.35.4", "at first %q, want %q; API server %s", line, want, version())
	reconfigure(t, c, "kube-apiserver:v1.35.4", "kube-apiserver:v1.36.1")
	pod := must.Get(safe.StateGetByID[*k8s.StaticPod](t.Context(), c.COSI, "kube-apiserver"))(t)
	must.Contain(t, "rendered", fmt.Sprint(pod.TypedSpec().Pod["spec"]), "kube-apiserver:v1.36.1")
	var seen []string
	for range 80 {
		if v := version(); len(seen) == 0 || seen[len(seen)-1] != v {
			seen = append(seen, v)
		}
		time.Sleep(time.Second)
	}
	must.Equal(t, "Diff", "", gocmp.Diff([]string{"v1.35.4", "nobody", "v1.36.1"}, seen))
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
	before := must.Get(k.CoreV1().Nodes().Get(t.Context(), "wk1", metav1.GetOptions{}))(t)
	reconfigure(t, machineClient(t, lab, "wk1"), "kubelet:v1.35.4", "kubelet:v1.36.1")
	var seen []string
	for range 60 {
		n := must.Get(k.CoreV1().Nodes().Get(t.Context(), "wk1", metav1.GetOptions{}))(t)
		version, ready := nodeState(t, k, "wk1")
		if line := version + " " + string(ready); len(seen) == 0 || seen[len(seen)-1] != line {
			seen = append(seen, line)
		}
		must.Be(t, n.UID == before.UID && n.Status.NodeInfo.BootID == before.Status.NodeInfo.BootID, "the machine was booted")
		time.Sleep(time.Second)
	}
	must.Equal(t, "Diff", "", gocmp.Diff([]string{"v1.35.4 True", "v1.36.1 False", "v1.36.1 True"}, seen))
}

// TestKubernetesImagesInTrouble: how a component with a bad image fails, and that the old image repairs it.
func TestKubernetesImagesInTrouble(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	t.Parallel()
	const fresh = "registry.k8s.io/kube-scheduler:v1.36.1"
	type row struct {
		version string
		defect  talosapi.Defect
		after   time.Duration
		want    string
	}
	must.Bubbles(t, map[string]row{
		"not there":     {"v1.36.99", talosapi.Sound, 40 * time.Second, "kube-scheduler:v1.36.99 config 2 ready False ImagePullBackOff"},
		"unpullable":    {"v1.36.1", talosapi.Unpullable, 40 * time.Second, "kube-scheduler:v1.36.1 config 2 ready False ImagePullBackOff"},
		"never arrives": {"v1.36.1", talosapi.Endless, time.Hour, "kube-scheduler:v1.36.1 config 2 ready False ContainerCreating"},
		"never ready":   {"v1.36.1", talosapi.Unready, time.Hour, "kube-scheduler:v1.36.1 config 2 ready False"},
		"ends at once":  {"v1.36.1", talosapi.Loops, time.Minute, "kube-scheduler:v1.36.1 config 2 ready False CrashLoopBackOff"},
	}, func(t *testing.T, c row) {
		lab := start(t, sim.Options{Workers: 1}, true)
		k, machine := kubernetesClient(t, lab), machineClient(t, lab, "cp1")
		must.Do(t, lab.Trouble("cp1", talosapi.Trouble{Images: map[string]talosapi.Defect{fresh: c.defect}}))
		reconfigure(t, machine, "kube-scheduler:v1.35.4", "kube-scheduler:"+c.version)
		time.Sleep(c.after)
		if _, line := mirror(t, k, "kube-scheduler"); line != c.want {
			t.Errorf("got %q, want %q", line, c.want)
		}
		reconfigure(t, machine, "kube-scheduler:"+c.version, "kube-scheduler:v1.35.4")
		time.Sleep(time.Minute)
		_, line := mirror(t, k, "kube-scheduler")
		must.Hold(t, line == "kube-scheduler:v1.35.4 config 3 ready True", "mended: %q", line)
	})
}

// installer is the reference in a machine's configuration.
func installer(t *testing.T, c *client.Client) string {
	t.Helper()
	cfg := must.Get(safe.StateGet[*configres.MachineConfig](t.Context(), c.COSI, configres.NewMachineConfig(nil).Metadata()))(t)
	return cfg.Config().Machine().Install().Image()
}

func upgrade(t *testing.T, c *client.Client, ref string) {
	t.Helper()
	//lint:ignore SA1019 the call after which a node drains itself
	must.Get(c.UpgradeWithOptions(t.Context(), client.WithUpgradeImage(ref)))(t)
}

// watch samples a Node for d and lists the changes of its schedulability in order.
func watch(t *testing.T, lab *sim.Lab, node string, d time.Duration) string {
	t.Helper()
	var seen []string
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(500 * time.Millisecond)
		n := must.Get(lab.Kube.Node(t.Context(), node))(t)
		state := "open"
		if n.Spec.Unschedulable {
			state = "cordoned by " + cmp.Or(strings.Repeat("talos", len(n.Annotations[constants.AnnotationCordonedKey])/4), "others")
		}
		if len(seen) == 0 || seen[len(seen)-1] != state {
			seen = append(seen, state)
		}
	}
	return strings.Join(seen, ", ")
}

// webOn counts the web server's pods on a node.
func webOn(t *testing.T, lab *sim.Lab, node string) int {
	t.Helper()
	pods, _, err := lab.Kube.Store().List(t.Context(), store.Pods(), "default")
	must.Do(t, err)
	count := 0
	for _, o := range pods {
		if o.(*corev1.Pod).Spec.NodeName == node {
			count++
		}
	}
	return count
}

func TestNodeDrainsItselfForAnUpgrade(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		lab := start(t, sim.Options{}, true)
		cp, wk := machineClient(t, lab, "cp1"), machineClient(t, lab, "wk1")
		time.Sleep(time.Minute)
		before := must.Get(lab.Kube.Node(t.Context(), "wk1"))(t)
		must.Be(t, webOn(t, lab, "wk1") != 0, "nothing to drain")
		upgrade(t, wk, installer(t, cp))
		must.Equal(t, "the node was", "cordoned by talos, open", watch(t, lab, "wk1", 5*time.Minute))
		if n := webOn(t, lab, "wk1"); n > 0 {
			t.Errorf("%d pods are still where they were", n)
		}
		after := must.Get(lab.Kube.Node(t.Context(), "wk1"))(t)
		must.Equal(t, "the node has not been rebooted", false, after.Status.NodeInfo.BootID == before.Status.NodeInfo.BootID)
		// a person's cordon must stay
		n := after.DeepCopy()
		n.Spec.Unschedulable = true
		must.Get(lab.Kube.Store().Update(t.Context(), store.Nodes(), n, store.Main))(t)
		upgrade(t, wk, installer(t, wk))
		must.Equal(t, "the node was", "cordoned by others", watch(t, lab, "wk1", 5*time.Minute))
	})
}

func TestPullByDigest(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		lab := start(t, sim.Options{}, true)
		cp, wk := machineClient(t, lab, "cp1"), machineClient(t, lab, "wk1")
		tagged := installer(t, cp)
		in := &common.ContainerdInstance{Driver: common.ContainerDriver_CRI, Namespace: common.ContainerdNamespace_NS_SYSTEM}
		pull := func(c *client.Client, ref string) (name string, err error) {
			s, err := c.ImageClient.Pull(t.Context(), &machineapi.ImageServicePullRequest{Containerd: in, ImageRef: ref})
			for err == nil {
				var m *machineapi.ImageServicePullResponse
				if m, err = s.Recv(); err == nil && m.GetName() != "" {
					name = m.GetName()
				}
			}
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return name, err
		}
		if name, err := pull(cp, tagged); name != tagged || err != nil {
			t.Fatalf("pulled %s, err = %v", name, err)
		}
		list := must.Get(cp.ImageClient.List(t.Context(), &machineapi.ImageServiceListRequest{Containerd: in}))(t)
		first := must.Get(list.Recv())(t)
		repository := tagged[:strings.LastIndexByte(tagged, ':')]
		name, err := pull(wk, tagged+"@"+first.GetDigest())
		must.Hold(t, name == repository+"@"+first.GetDigest() && err == nil, "pulled %s, err = %v", name, err)
		if _, err := pull(wk, repository+"@sha256:"+strings.Repeat("0", 64)); status.Code(err) != codes.NotFound {
			t.Errorf("a digest that nobody has: %v", err)
		}
		other := installer(t, wk)
		lab.BreakImage(strings.Split(other, "/")[2][:64], talosapi.Unpullable)
		if _, err := pull(cp, other); status.Code(err) != codes.NotFound {
			t.Errorf("a broken image: %v", err)
		}
	})
}

// start starts a lab; ready says whether to install it too.
func start(t *testing.T, o sim.Options, ready bool) *sim.Lab {
	t.Helper()
	o.Network, o.Prefix, o.Registry, o.Factory = network.Memory(), "127.42.7", "127.0.0.1:5000", "127.0.0.1:8080"
	lab := must.Get(sim.New(t.Context(), o))(t)
	t.Cleanup(func() {
		must.Do(t, lab.Close())
	})
	if ready {
		install(t, lab)
	}
	return lab
}

func install(t *testing.T, lab *sim.Lab) {
	t.Helper()
	files, err := lab.Files()
	must.Do(t, err)
	err = lab.Install(t.Context(), map[string]string{
		"default": string(files["schematics/default.yaml"]), "storage": string(files["schematics/storage.yaml"]),
	})
	if err == nil {
		err = lab.WaitReady(t.Context())
	}
	must.Do(t, err)
}

// kubernetesClient is client-go with the lab's kubeconfig.
func kubernetesClient(t *testing.T, lab *sim.Lab) *kubernetes.Clientset {
	t.Helper()
	files := must.Get(lab.Files())(t)
	cfg := must.Get(clientcmd.RESTConfigFromKubeConfig(files["kubeconfig"]))(t)
	cfg.Dial, cfg.QPS = lab.Client().DialContext, -1
	h := must.Get(rest.HTTPClientFor(cfg))(t)
	t.Cleanup(h.CloseIdleConnections)
	return must.Get(kubernetes.NewForConfigAndClient(cfg, h))(t)
}

func memberNames(lab *sim.Lab) string {
	var names []string
	for _, m := range lab.EtcdMembers() {
		if m.Learner {
			m.Name += "?"
		}
		names = append(names, m.Name)
	}
	return strings.Join(names, " ")
}

func TestEtcdIsThereFromTheStart(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	t.Parallel()
	for n := 1; n <= 5; n++ {
		for _, onData := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d onData=%t", n, onData), func(t *testing.T) {
				must.Bubble(t, func(t *testing.T) {
					lab := start(t, sim.Options{ControlPlanes: n, Workers: 1, EtcdOnData: onData}, true)
					must.Equal(t, "members", strings.Join([]string{"cp1", "cp2", "cp3", "cp4", "cp5"}[:n], " "), memberNames(lab))
					wantDisks := 1
					if onData {
						wantDisks += n
					}
					must.Equal(t, "persistent disks", wantDisks, len(lab.Disks()))
					v := append(lab.EtcdViolations(), lab.World.Violations()...)
					must.Hold(t, len(v) == 0, "violations %q", v)
				})
			})
		}
	}
}

func TestEtcdDataOnAPersistentDiskIsProtected(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		lab := start(t, sim.Options{ControlPlanes: 3, Workers: 1, EtcdOnData: true}, true)
		before := lab.Disks()
		must.Do(t, lab.World.PowerOff(9003))
		must.Do(t, lab.World.PowerOn(9003))
		time.Sleep(2 * time.Minute)
		must.Equal(t, "disks (-before +after)", before, lab.Disks())
		v := append(lab.EtcdViolations(), lab.World.Violations()...)
		must.Hold(t, len(v) == 0, "violations %q", v)
		for _, d := range lab.World.Persistent() {
			if d.Serial == "data-cp2" {
				lab.World.Media(d.Volid, "pve1").Write(talosapi.DataDisk("EPHEMERAL", nil))
			}
		}
		if v := lab.World.Violations(); len(v) != 1 || !strings.HasPrefix(v[0], "disk data-cp2: content is ") {
			t.Errorf("violations after another volume was put there: %q", v)
		}
	})
}

func TestTheKubernetesAPINeedsControlPlanesAndEtcd(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		lab := start(t, sim.Options{ControlPlanes: 3, Workers: 1}, false)
		c := kubernetesClient(t, lab)
		list := func() error {
			_, err := c.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
			return err
		}
		must.Equal(t, "before the install", syscall.EHOSTUNREACH, list(), cmpopts.EquateErrors())
		install(t, lab)
		must.Pass(t, list())
		power := func(on bool, ids ...int) {
			for _, id := range ids {
				change := lab.World.PowerOff
				if on {
					change = lab.World.PowerOn
				}
				must.Do(t, change(id))
			}
			synctest.Wait() // wait until connections to stopped machines have broken
		}
		power(false, 9002)
		must.Pass(t, list())
		power(false, 9003)
		began := time.Now()
		var status apierrors.APIStatus
		if err := list(); !errors.As(err, &status) || status.Status().Code != http.StatusInternalServerError || status.Status().Message != "etcdserver: request timed out" || time.Since(began) != 7*time.Second {
			t.Errorf("one of three runs: after %s %v", time.Since(began), err)
		}
		power(false, 9001)
		time.Sleep(time.Second)
		must.Equal(t, "none runs", syscall.EHOSTUNREACH, list(), cmpopts.EquateErrors())
		power(true, 9001, 9002)
		time.Sleep(2 * time.Minute)
		must.Pass(t, list())
		must.Equal(t, "violations", 1, len(lab.EtcdViolations()))
	})
}

func TestBreakEtcd(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		lab := start(t, sim.Options{Workers: 1}, true)
		c := kubernetesClient(t, lab)
		must.Equal(t, "a worker has no etcd", false, lab.BreakEtcd("wk1", talosapi.EtcdFault{Down: true}) == nil)
		must.Do(t, lab.BreakEtcd("cp1", talosapi.EtcdFault{Down: true}))
		time.Sleep(time.Minute)
		_, err := c.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		must.Hold(t, err != nil && strings.Contains(err.Error(), "etcdserver: request timed out"), "with etcd down: %v", err)
	})
}

// TestRaftIndex: each write to Kubernetes is an entry of raft's log, which every member has.
func TestRaftIndex(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		lab := start(t, sim.Options{ControlPlanes: 3, Workers: sim.None}, true)
		time.Sleep(time.Minute)
		index := func() (all uint64) {
			t.Helper()
			for i, node := range []string{"cp1", "cp2", "cp3"} {
				s := must.Get(machineClient(t, lab, node).EtcdStatus(t.Context()))(t)
				m := s.GetMessages()[0].GetMemberStatus()
				if i > 0 && m.GetRaftIndex() != all || m.GetRaftAppliedIndex() != m.GetRaftIndex() {
					t.Errorf("%s: index %d, applied %d, of another member %d", node, m.GetRaftIndex(), m.GetRaftAppliedIndex(), all)
				}
				all = m.GetRaftIndex()
			}
			return all
		}
		before := index()
		c := kubernetesClient(t, lab).CoreV1().ConfigMaps("default")
		for _, name := range []string{"a", "b"} {
			must.Get(c.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))(t)
		}
		must.Equal(t, "index", before+2, index())
		time.Sleep(time.Minute)
		idle := index()
		must.Hold(t, idle >= before+2+6*3, "a minute in which three kubelets renewed their leases ended at %d, it began at %d", idle, before+2)
	})
}
