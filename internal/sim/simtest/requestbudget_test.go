package simtest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/record"
)

const (
	manyVolumes = 2000 // PersistentVolumes, whatever the number of nodes
	listPage    = 500  // objects in an answer of Kubernetes
)

// mostAsked are the maximum requests and bytes of a command: fixed ones, and those for
// each node.
type mostAsked struct {
	proxmox, ofNode int   // requests to Proxmox
	bytesOfNode     int64 // of Proxmox' answers
	talos           int   // requests to all machines, besides 24 to each
}

// TestOneLook: plan and doctor request nothing twice from Kubernetes and Proxmox, whatever
// the number of nodes and volumes. Only requests about a VM or a machine grow with the
// number of nodes; Kubernetes sends each object once.
func TestOneLook(t *testing.T) {
	commands := map[string]struct {
		run  func(c *Client, t *testing.T) error
		most mostAsked
	}{
		"plan": {
			func(c *Client, t *testing.T) error { return errOf(c.Plan(t.Context(), planning.Policy{})) },
			mostAsked{proxmox: 16, ofNode: 6, bytesOfNode: 3 << 10, talos: 1},
		},
		"doctor": {
			func(c *Client, t *testing.T) error { return errOf(c.Doctor(t.Context())) },
			mostAsked{proxmox: 46, ofNode: 7, bytesOfNode: 3 << 10, talos: 12},
		},
	}
	for _, nodes := range []int{10, 60, 500} {
		t.Run(strconv.Itoa(nodes), func(t *testing.T) {
			if nodes > 10 {
				long(t)
			}
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				lab := NewDirect(t, sim.Options{ControlPlanes: 3, Workers: nodes - 3, Hosts: 3})
				lab.putVolumes(manyVolumes)
				objects, once := lab.objectsOnce("nodes", "pods", "persistentvolumes")
				for _, name := range slices.Sorted(maps.Keys(commands)) {
					from := len(lab.Recorder.Calls())
					must(t, commands[name].run(lab.Client(), t))
					asked := sum(lab.Recorder.Calls()[from:])
					t.Logf("%s: %+v", name, asked)
					asked.require(t, name, commands[name].most, nodes, objects, once)
				}
			})
		})
	}
}

// putVolumes adds that many volumes of network storage, and for every hundred one on a worker's disk.
func (l *Lab) putVolumes(n int) {
	for i := range n {
		name := fmt.Sprintf("pvc-%04d", i)
		pv := &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": "rbd.csi.ceph.com"}},
			Spec: corev1.PersistentVolumeSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				ClaimRef:    &corev1.ObjectReference{Namespace: "default", Name: "claim-" + name},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
					Driver: "rbd.csi.ceph.com", VolumeHandle: "0001-0009-rook-ceph-" + name, FSType: "ext4",
				}},
			},
			Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
		}
		if i%100 == 0 {
			pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/var/mnt/" + name}}
			pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"wk1"}}},
			}}}}
		}
		l.put(store.Volumes(), pv)
	}
}

// objectsOnce counts the objects of each kind, and their size as JSON.
func (l *Lab) objectsOnce(kinds ...string) (objects map[string]int, bytes int64) {
	l.t.Helper()
	objects = map[string]int{}
	for _, r := range store.Resources() {
		if !slices.Contains(kinds, r.Resource) {
			continue
		}
		list, _, err := l.Kube.Store().List(l.t.Context(), r.GroupVersionResource, "")
		must(l.t, err)
		objects[r.Resource] = len(list)
		for _, o := range list {
			b, err := json.Marshal(o)
			must(l.t, err)
			bytes += int64(len(b)) + 1
		}
	}
	return objects, bytes
}

// asked is the requests to servers, by protocol.
type asked struct {
	Requests map[string]int
	Bytes    map[string]int64
	twice    map[string]int // by request
}

func sum(calls []record.Call) asked {
	a := asked{Requests: map[string]int{}, Bytes: map[string]int64{}, twice: map[string]int{}}
	for _, c := range calls {
		a.Requests[c.Proto]++
		a.Bytes[c.Proto] += c.Bytes
		if c.Proto == "kubernetes" || c.Proto == "proxmox" {
			a.twice[c.Proto+" "+c.Method+" "+c.Path]++
		}
	}
	maps.DeleteFunc(a.twice, func(_ string, n int) bool { return n == 1 })
	return a
}

func (a asked) require(t *testing.T, command string, most mostAsked, nodes int, objects map[string]int, once int64) {
	t.Helper()
	for _, request := range slices.Sorted(maps.Keys(a.twice)) {
		if strings.HasSuffix(request, "/cluster/resources?type=vm") && a.twice[request] == 2 {
			continue // doctor has its own list of containers
		}
		t.Errorf("%s: asked %d times: %s", command, a.twice[request], request)
	}
	lists := 1 // the API groups
	for _, n := range objects {
		lists += max(1, (n+listPage-1)/listPage)
	}
	limits := map[string]int{"kubernetes": lists, "proxmox": most.proxmox + most.ofNode*nodes, "talos": most.talos + 24*nodes}
	for proto, limit := range limits {
		if a.Requests[proto] > limit {
			t.Errorf("%s: %s was asked %d times about %d nodes, more than %d", command, proto, a.Requests[proto], nodes, limit)
		}
	}
	const around = 64 << 10 // lists have a head, and the groups no objects
	if limit := once + around; a.Bytes["kubernetes"] > limit {
		t.Errorf("%s: Kubernetes has sent %d bytes, all objects once are %d", command, a.Bytes["kubernetes"], limit)
	}
	if limit := around + most.bytesOfNode*int64(nodes); a.Bytes["proxmox"] > limit {
		t.Errorf("%s: Proxmox has sent %d bytes about %d nodes, more than %d", command, a.Bytes["proxmox"], nodes, limit)
	}
}
