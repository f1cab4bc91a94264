package simtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

const (
	manyVolumes = 2000 // PersistentVolumes, whatever the number of nodes
	listPage    = 500  // objects in an answer of Kubernetes
)

// mostAsked are the maximum requests and bytes of a command: fixed ones, and those for each node.
type mostAsked struct {
	proxmox, ofNode int   // requests to Proxmox
	bytesOfNode     int64 // of Proxmox' answers
	talos           int   // requests to all machines
	talosOfNode     int   // … to each
}

// TestOneLook: plan and doctor request nothing twice from Kubernetes and Proxmox, whatever the number of nodes and
// volumes. Only requests about a VM or a machine grow with the number of nodes; Kubernetes sends each object once.
func TestOneLook(t *testing.T) {
	plan := func(ctx context.Context, c *Client) error { return errOf(c.Plan(ctx, planning.Policy{})) }
	doctor := func(ctx context.Context, c *Client) error { return errOf(c.Doctor(ctx)) }
	commands := map[string]struct {
		patch string // of a schematic, before
		run   deed
		most  mostAsked
	}{
		"plan":           {"", plan, mostAsked{16, 6, 3 << 10, 1, 16}},
		"plan with work": {sim.PatchedExtension, plan, mostAsked{16, 6, 3 << 10, 1, 30}},
		"doctor":         {"", doctor, mostAsked{46, 7, 3 << 10, 12, 24}},
	}
	for _, nodes := range []int{10, 60, 500} {
		t.Run(strconv.Itoa(nodes), func(t *testing.T) {
			if nodes > 10 {
				long(t)
			}
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				lab := New(t, sim.Options{ControlPlanes: 3, Workers: nodes - 3, Hosts: 3})
				lab.putVolumes(manyVolumes)
				objects, once := lab.objectsOnce("nodes", "pods", "persistentvolumes")
				for _, name := range slices.Sorted(maps.Keys(commands)) {
					if patch := commands[name].patch; patch != "" {
						lab.Patch(patch)
					}
					from := len(lab.Recorder.Calls())
					must(t, commands[name].run(t.Context(), lab.Client()))
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
		list := l.allStored(r.GroupVersionResource, "")
		objects[r.Resource] = len(list)
		for _, o := range list {
			bytes += int64(len(valueOf(json.Marshal(o))(l.t))) + 1
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
	limits := map[string]int{"kubernetes": lists, "proxmox": most.proxmox + most.ofNode*nodes, "talos": most.talos + most.talosOfNode*nodes}
	for proto, limit := range limits {
		require(t, a.Requests[proto] <= limit,
			"%s: %s was asked %d times about %d nodes, more than %d", command, proto, a.Requests[proto], nodes, limit)
	}
	const around = 64 << 10 // lists have a head, and the groups no objects
	limit := once + around
	require(t, a.Bytes["kubernetes"] <= limit,
		"%s: Kubernetes has sent %d bytes, all objects once are %d", command, a.Bytes["kubernetes"], limit)
	limit = around + most.bytesOfNode*int64(nodes)
	require(t, a.Bytes["proxmox"] <= limit,
		"%s: Proxmox has sent %d bytes about %d nodes, more than %d", command, a.Bytes["proxmox"], nodes, limit)
}

// TestDriftAsksLittle counts the requests of a drift, and how many of them depend on an
// earlier answer: in this lab only the network takes time.
func TestDriftAsksLittle(t *testing.T) {
	const latency = 20 * time.Millisecond
	inLab(t, sim.Options{ControlPlanes: 3, Workers: 3, Hosts: 2, Latency: latency}, func(t *testing.T, lab *Lab) {
		before := lab.State().Requests
		began := time.Now()
		requireDrift(t, lab)
		waits := int(time.Since(began) / latency)
		after := lab.State().Requests
		nodes := len(lab.Nodes)
		for proto, most := range map[string]int{
			"proxmox":    nodes + 4,    // each VM; the lists of VMs, hosts and storages, and the quorum
			"talos":      13*nodes + 1, // each machine; the members
			"kubernetes": 2,            // the Nodes, and which storage systems there are
		} {
			asked := after[proto] - before[proto]
			require(t, asked <= most, "%s was asked %d times about %d nodes, more than %d", proto, asked, nodes, most)
		}
		const most = 10 // including handshakes
		require(t, waits <= most, "it waited for %d answers one after the other, more than %d", waits, most)
	})
}

// Build is recast publish --only build.
func (c *Client) Build(ctx context.Context) error {
	s, err := c.connectImages()
	if err != nil {
		return err
	}
	defer s.end()
	_, err = pipeline.Build(ctx, s.project, s.images, &step.Runner{Emit: c.Emit})
	return err
}

// TestNothingToDo: a stage whose outputs exist writes nothing, reads no content and takes less than a second, without
// requests to Talos or Kubernetes. The exceptions: lock reads the registry's list of extensions, and publish makes Proxmox
// compare the checksum of each ISO, if the token allows that, which takes its time.
func TestNothingToDo(t *testing.T) {
	mirror := configuration("images:\n", "images:\n  mirror: 127.0.0.1:5000/acme/talos\n")
	type story struct {
		bring edit
		isos  int // that are compared: one for each schematic
	}
	eachInLab(t, oneWorker(), map[string]story{
		"uploads":          {mirror, 0},
		"without a mirror": {all(), 0},
		"downloads": {all(mirror, func(l *Lab) {
			l.World.AddRole("Downloads", "Sys.AccessNetwork")
			for _, who := range l.World.ACLs() {
				l.World.Grant(world.ACL{Path: "/", Who: who.Who, Role: "Downloads", Propagate: true})
			}
		}), 2},
	}, func(t *testing.T, lab *Lab, s story) {
		s.bring(lab)
		lab.Patch(sim.PatchedExtension)
		must(t, lab.Client().Publish(t.Context()))
		lab.requireIdle(t, "lock", 0, func(c *Client) error { return errOf(c.Lock(t.Context(), pipeline.LockOptions{})) })
		lab.requireIdle(t, "lock --update", 0, func(c *Client) error { return errOf(c.Lock(t.Context(), pipeline.LockOptions{Update: true})) })
		lab.requireIdle(t, "build", 0, func(c *Client) error { return c.Build(t.Context()) })
		lab.requireIdle(t, "publish", s.isos, func(c *Client) error { return c.Publish(t.Context()) })
	})
}

// requireIdle runs a stage that only has to have that many checksums compared.
func (l *Lab) requireIdle(t *testing.T, stage string, checksums int, run func(*Client) error) {
	t.Helper()
	file := filepath.Join(l.Dir, "recast.lock")
	was := valueOf(os.Stat(file))(t)
	lock, calls, tasks, start := l.Read("recast.lock"), len(l.Recorder.Calls()), len(l.World.Tasks()), time.Now()
	err := run(l.Client())
	mustBe(t, err == nil, "%s: %v", stage, err)
	took := time.Since(start)
	compared := l.World.Tasks()
	compared = compared[:len(compared)-tasks] // the latest are first
	for _, task := range compared {
		took -= task.End.Sub(task.Start)
		log := strings.Join(task.Log, "\n")
		require(t, task.Type == "download" && strings.Contains(log, "no need to download"),
			"%s: task %s: %s", stage, task.UPID, log)
	}
	most := time.Second * time.Duration(max(1, checksums)) // each is polled for
	require(t, took < most, "%s took %s, the comparing of %d checksums left out", stage, took, checksums)
	require(t, len(compared) == checksums, "%s had %d checksums compared, want %d", stage, len(compared), checksums)
	requireNone(t, l.sent(calls, func(c record.Call) bool { return !harmless(stage, c) }), stage)
	is := valueOf(os.Stat(file))(t)
	require(t, bytes.Equal(l.Read("recast.lock"), lock) && is.ModTime().Equal(was.ModTime()) && os.SameFile(was, is),
		"%s wrote recast.lock", stage)
}

// harmless says whether a request of a stage neither changes anything nor reads image content.
func harmless(stage string, c record.Call) bool {
	reads := c.Method == http.MethodGet || c.Method == http.MethodHead
	switch c.Proto {
	case "registry", "factory":
		list := strings.HasPrefix(stage, "lock") && strings.HasPrefix(c.Path, "/v2/siderolabs/extensions/blobs/")
		return reads && !strings.HasPrefix(c.Path, "/image/") && (list || !strings.Contains(c.Path, "/blobs/"))
	case "proxmox":
		return reads || strings.HasSuffix(c.Path, "/download-url") // of an existing file: its task says so
	}
	return false // no other request is allowed
}
