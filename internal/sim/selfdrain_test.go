package sim_test

import (
	"cmp"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	configres "github.com/siderolabs/talos/pkg/machinery/resources/config"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// installer is the reference in a machine's configuration.
func installer(t *testing.T, c *client.Client) string {
	t.Helper()
	cfg, err := safe.StateGet[*configres.MachineConfig](t.Context(), c.COSI, configres.NewMachineConfig(nil).Metadata())
	if err != nil {
		t.Fatal(err)
	}
	return cfg.Config().Machine().Install().Image()
}

func upgrade(t *testing.T, c *client.Client, ref string) {
	t.Helper()
	//lint:ignore SA1019 the call after which a node drains itself
	if _, err := c.UpgradeWithOptions(t.Context(), client.WithUpgradeImage(ref)); err != nil {
		t.Fatal(err)
	}
}

// watch samples a Node for d and lists the changes of its schedulability in order.
func watch(t *testing.T, lab *sim.Lab, node string, d time.Duration) string {
	t.Helper()
	var seen []string
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(500 * time.Millisecond)
		n, err := lab.Kube.Node(t.Context(), node)
		if err != nil {
			t.Fatal(err)
		}
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
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, o := range pods {
		if o.(*corev1.Pod).Spec.NodeName == node {
			count++
		}
	}
	return count
}

func TestNodeDrainsItselfForAnUpgrade(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lab := start(t, sim.Options{}, true)
		cp, wk := machineClient(t, lab, "cp1"), machineClient(t, lab, "wk1")
		time.Sleep(time.Minute)
		before, err := lab.Kube.Node(t.Context(), "wk1")
		if err != nil {
			t.Fatal(err)
		}
		if webOn(t, lab, "wk1") == 0 {
			t.Fatal("nothing to drain")
		}
		upgrade(t, wk, installer(t, cp))
		if got := watch(t, lab, "wk1", 5*time.Minute); got != "cordoned by talos, open" {
			t.Errorf("the node was %s", got)
		}
		if n := webOn(t, lab, "wk1"); n > 0 {
			t.Errorf("%d pods are still where they were", n)
		}
		after, err := lab.Kube.Node(t.Context(), "wk1")
		if err != nil {
			t.Fatal(err)
		}
		if after.Status.NodeInfo.BootID == before.Status.NodeInfo.BootID {
			t.Error("the node has not been rebooted")
		}
		// a person's cordon must stay
		n := after.DeepCopy()
		n.Spec.Unschedulable = true
		if _, err := lab.Kube.Store().Update(t.Context(), store.Nodes(), n, store.Main); err != nil {
			t.Fatal(err)
		}
		upgrade(t, wk, installer(t, wk))
		if got := watch(t, lab, "wk1", 5*time.Minute); got != "cordoned by others" {
			t.Errorf("the node was %s", got)
		}
	})
}

func TestPullByDigest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
		list, err := cp.ImageClient.List(t.Context(), &machineapi.ImageServiceListRequest{Containerd: in})
		if err != nil {
			t.Fatal(err)
		}
		first, err := list.Recv()
		if err != nil {
			t.Fatal(err)
		}
		repository := tagged[:strings.LastIndexByte(tagged, ':')]
		if name, err := pull(wk, tagged+"@"+first.GetDigest()); name != repository+"@"+first.GetDigest() || err != nil {
			t.Errorf("pulled %s, err = %v", name, err)
		}
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
