package sim_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

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
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					lab := start(t, sim.Options{ControlPlanes: n, Workers: 1, EtcdOnData: onData}, true)
					must.Equal(t, "members", strings.Join([]string{"cp1", "cp2", "cp3", "cp4", "cp5"}[:n], " "), memberNames(lab))
					wantDisks := 1
					if onData {
						wantDisks += n
					}
					must.Equal(t, "persistent disks", wantDisks, len(lab.Disks()))
					if v := append(lab.EtcdViolations(), lab.World.Violations()...); len(v) > 0 {
						t.Errorf("violations %q", v)
					}
				})
			})
		}
	}
}

func TestEtcdDataOnAPersistentDiskIsProtected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lab := start(t, sim.Options{ControlPlanes: 3, Workers: 1, EtcdOnData: true}, true)
		before := lab.Disks()
		must.Do(t, lab.World.PowerOff(9003))
		must.Do(t, lab.World.PowerOn(9003))
		time.Sleep(2 * time.Minute)
		must.Equal(t, "disks (-before +after)", before, lab.Disks())
		if v := append(lab.EtcdViolations(), lab.World.Violations()...); len(v) > 0 {
			t.Errorf("violations %q", v)
		}
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lab := start(t, sim.Options{ControlPlanes: 3, Workers: 1}, false)
		c := kubernetesClient(t, lab)
		list := func() error {
			_, err := c.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
			return err
		}
		must.Equal(t, "before the install", syscall.EHOSTUNREACH, list(), cmpopts.EquateErrors())
		install(t, lab)
		if err := list(); err != nil {
			t.Errorf("installed: %v", err)
		}
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
		if err := list(); err != nil {
			t.Errorf("two of three run: %v", err)
		}
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
		if err := list(); err != nil {
			t.Errorf("two of three run again: %v", err)
		}
		must.Equal(t, "violations", 1, len(lab.EtcdViolations()))
	})
}

func TestBreakEtcd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lab := start(t, sim.Options{Workers: 1}, true)
		c := kubernetesClient(t, lab)
		must.Equal(t, "a worker has no etcd", false, lab.BreakEtcd("wk1", talosapi.EtcdFault{Down: true}) == nil)
		must.Do(t, lab.BreakEtcd("cp1", talosapi.EtcdFault{Down: true}))
		time.Sleep(time.Minute)
		_, err := c.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		if err == nil || !strings.Contains(err.Error(), "etcdserver: request timed out") {
			t.Errorf("with etcd down: %v", err)
		}
	})
}

// TestRaftIndex: each write to Kubernetes is an entry of raft's log, which every member has.
func TestRaftIndex(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
		if idle := index(); idle < before+2+6*3 {
			t.Errorf("a minute in which three kubelets renewed their leases ended at %d, it began at %d", idle, before+2)
		}
	})
}
