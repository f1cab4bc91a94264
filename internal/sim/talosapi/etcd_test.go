package talosapi_test

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
)

// quorum is control planes with EPHEMERAL, and so etcd, on a separate disk.
type quorum struct {
	*lab
	image artefact.Image
	boxes map[string]*box
	data  map[string]world.Drive
	as    map[string]string // machine.type by hostname; else controlplane
}

func address(n int) string { return fmt.Sprintf("127.42.7.%d", 10+n) }

// newQuorum starts n control planes and waits until all are ready.
func newQuorum(t *testing.T, n int) *quorum { return newQuorumOf(t, n, image("old")) }

// inQuorum runs a test with n ready control planes, in a bubble.
func inQuorum(t *testing.T, n int, test func(*testing.T, *quorum)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { test(t, newQuorum(t, n)) })
}

// newQuorumOf is newQuorum with that image.
func newQuorumOf(t *testing.T, n int, img artefact.Image) *quorum {
	q := &quorum{lab: newLab(t), image: img, boxes: map[string]*box{}, data: map[string]world.Drive{}, as: map[string]string{}}
	var peers []talosapi.EtcdPeer
	for i := 1; i <= n; i++ {
		peers = append(peers, talosapi.EtcdPeer{Name: fmt.Sprintf("cp%d", i), Addr: netip.MustParseAddr(address(i))})
	}
	for i, member := range q.fw.FormEtcd(q.cluster, peers...) {
		content := must.Get(talosapi.WithEtcd(talosapi.DataDisk("EPHEMERAL", nil), member))(t)
		q.data[member.Name] = disk("virtio1", "data", 20, content)
		q.start(i+1, member.Name, member.Name)
	}
	for i := 1; i <= n; i++ {
		q.running(address(i))
	}
	return q
}

// start makes machine cpN from a new system disk and its existing data disk, and powers it on.
func (q *quorum) start(n int, machine, hostname string) {
	q.t.Helper()
	system := must.Get(q.fw.Preinstalled(q.conf(hostname), ukiOf(q.t, q.image), true))(q.t)
	b := q.box(address(n), disk("virtio0", "system", 10, system), q.data[machine])
	q.boxes[machine] = b
	b.on()
}

// conf is the configuration of a control plane.
func (q *quorum) conf(hostname string) []byte {
	q.t.Helper()
	conf := q.config(talosapi.Machine{
		Hostname: hostname, ControlPlane: true, Installer: oldRef,
		Documents: []string{"apiVersion: v1alpha1\nkind: VolumeConfig\nname: EPHEMERAL\nprovisioning:\n  diskSelector:\n    match: disk.serial == 'data'\n"},
	})
	if kind := q.as[hostname]; kind != "" {
		conf = bytes.Replace(conf, []byte("type: controlplane"), []byte("type: "+kind), 1)
	}
	return conf
}

// wipe gives a machine an empty data disk.
func (q *quorum) wipe(machine string) {
	q.data[machine] = disk("virtio1", "data", 20, talosapi.DataDisk("EPHEMERAL", nil))
}

func (q *quorum) kill(machine string) { q.boxes[machine].guest.Kill() }

func (q *quorum) admin(n int) *client.Client { return q.client(address(n), role.Admin) }

// members lists the names, learners with a question mark.
func (q *quorum) members() string {
	var out []string
	for _, m := range q.fw.EtcdMembers() {
		if m.Learner {
			m.Name += "?"
		}
		out = append(out, m.Name)
	}
	return strings.Join(out, " ")
}

func (q *quorum) id(name string) uint64 {
	q.t.Helper()
	for _, m := range q.fw.EtcdMembers() {
		if m.Name == name {
			var id uint64
			must.Get(fmt.Sscanf(m.ID, "%x", &id))(q.t)
			return id
		}
	}
	q.t.Fatalf("no member %s in %v", name, q.fw.EtcdMembers())
	return 0
}

// service is talosctl's view of the etcd service.
func (q *quorum) service(n int) string {
	q.t.Helper()
	list := must.Get(q.admin(n).ServiceList(q.t.Context()))(q.t)
	for _, s := range list.GetMessages()[0].GetServices() {
		if s.GetId() == "etcd" {
			health := map[bool]string{true: "OK", false: "Fail"}[s.GetHealth().GetHealthy()]
			if s.GetHealth().GetUnknown() {
				health = "?"
			}
			last := s.GetEvents().GetEvents()[len(s.GetEvents().GetEvents())-1]
			return s.GetState() + " " + health + ": " + last.GetMsg()
		}
	}
	q.t.Fatal("there is no service etcd")
	return ""
}

// machine is the stage and readiness of a machine.
func (q *quorum) machine(n int) string {
	q.t.Helper()
	return must.Get(q.status(q.admin(n)))(q.t)
}

// intact requires that etcd never lost its quorum.
func (q *quorum) intact() {
	q.t.Helper()
	if v := q.fw.EtcdViolations(); len(v) > 0 {
		q.t.Errorf("violations %q", v)
	}
}

// replace starts cp3 with an empty data disk in place of the one that runs.
func (q *quorum) replace(hostname string) {
	q.t.Helper()
	q.kill("cp3")
	q.wipe("cp3")
	time.Sleep(10 * time.Second)
	q.start(3, "cp3", hostname)
}

// remove removes the member of a machine.
func (q *quorum) remove(machine string) {
	q.t.Helper()
	req := &machineapi.EtcdRemoveMemberByIDRequest{MemberId: q.id(machine)}
	must.Do(q.t, q.admin(1).EtcdRemoveMemberByID(q.t.Context(), req))
}

func TestEtcdCaseAEmptyDataSameName(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum) {
		old := q.id("cp3")
		q.replace("cp3")
		time.Sleep(18 * time.Second) // it joins after 15 s
		want(t, "members", q.members(), "cp1 cp2 cp3?")
		want(t, "service of the learner", q.service(3), "Running ?: Started task etcd for container etcd")
		time.Sleep(10 * time.Second)
		want(t, "members", q.members(), "cp1 cp2 cp3")
		must.Equal(t, "the member has its old ID", false, q.id("cp3") == old)
		q.running(address(3))
		want(t, "service", q.service(3), "Running OK: Health check successful")
		want(t, "data", talosapi.Describe(q.data["cp3"].Media.Bytes())[len("EPHEMERAL ")+73+1+16:], " etcd voter cp3")
		q.intact()
	})
}

func TestEtcdCaseBDataKept(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum) {
		old, lasting := q.id("cp3"), talosapi.Lasting(q.data["cp3"].Media.Bytes())
		q.kill("cp3")
		q.start(3, "cp3", "cp3")
		q.running(address(3))
		want(t, "members", q.members(), "cp1 cp2 cp3")
		must.Equal(t, "the member has another ID", old, q.id("cp3"))
		want(t, "data", talosapi.Lasting(q.data["cp3"].Media.Bytes()), lasting)
	})
}

func TestEtcdCaseCEmptyDataOtherName(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum) {
		q.replace("cp4")
		time.Sleep(5 * time.Minute)
		want(t, "members", q.members(), "cp1 cp2 cp3")
		want(t, "service", q.service(3), "Preparing ?: Running pre state")
		want(t, "machine", q.machine(3), "booting ready=true")
		if !q.onScreen("error adding member: etcdserver: unhealthy cluster") {
			t.Errorf("screen %q", q.lines(&q.screen))
		}
		q.remove("cp3")
		q.running(address(3))
		want(t, "members", q.members(), "cp1 cp2 cp4")
	})
}

func TestEtcdCaseDRemovedWithItsDataKept(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum) {
		q.kill("cp3")
		q.remove("cp3")
		q.start(3, "cp3", "cp3")
		time.Sleep(20*time.Minute + time.Second) // between two attempts
		want(t, "members", q.members(), "cp1 cp2")
		want(t, "service", q.service(3), "Waiting ?: Runner Containerd(etcd) exited without error, going to restart it")
		want(t, "machine", q.machine(3), "booting ready=false services: etcd not running")
		if !q.onScreen("the member has been permanently removed from the cluster") {
			t.Errorf("screen %q", q.lines(&q.screen))
		}
	})
}

func TestEtcdADuplicateNameEvictsALiveMember(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum) {
		q.replace("cp2") // only two of three run: etcd protects the quorum, so nothing happens
		time.Sleep(time.Minute)
		want(t, "members", q.members(), "cp1 cp2 cp3")
		if !q.onScreen("error removing self from the member list: etcdserver: unhealthy cluster") {
			t.Errorf("screen %q", q.lines(&q.screen))
		}
		q.remove("cp3")
		live := q.id("cp2")
		time.Sleep(time.Minute)
		if q.id("cp2") == live {
			t.Errorf("the live member is still there: %v", q.fw.EtcdMembers())
		}
		want(t, "the evicted machine", q.machine(2), "running ready=false services: etcd not running")
	})
}

func TestEtcdWithoutQuorumWaits(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum) {
		q.kill("cp2")
		q.kill("cp3")
		began := time.Now()
		if _, err := q.admin(1).EtcdMemberList(t.Context(), &machineapi.EtcdMemberListRequest{}); err == nil || !strings.Contains(err.Error(), "etcdserver: request timed out") || time.Since(began) < 7*time.Second {
			t.Errorf("members after %s: %v", time.Since(began), err)
		}
		short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err := q.admin(1).EtcdMemberList(short, &machineapi.EtcdMemberListRequest{})
		requireError(t, "with a deadline", err, codes.DeadlineExceeded, "")
		s := must.Get(q.admin(1).EtcdStatus(t.Context()))(t)
		if m := s.GetMessages()[0].GetMemberStatus(); m.GetLeader() != 0 || !slices.Equal(m.GetErrors(), []string{"etcdserver: no leader"}) {
			t.Errorf("status %v", m)
		}
		requireError(t, "a snapshot needs no quorum", snapshotError(t.Context(), q.client(address(1), role.EtcdBackup)), codes.OK, "")
		time.Sleep(time.Minute)
		want(t, "service", q.service(1), "Running Fail: Health check failed: context deadline exceeded")
		want(t, "machine", q.machine(1), "running ready=false services: etcd not healthy")
		q.wipe("cp3")
		q.start(3, "cp3", "cp3") // it can't be added
		time.Sleep(time.Minute)
		want(t, "members", q.members(), "cp1 cp2 cp3")
		q.start(2, "cp2", "cp2")
		q.running(address(3))
		q.running(address(1))
		if v := q.fw.EtcdViolations(); len(v) != 1 || !strings.HasSuffix(v[0], "of the voting members [cp1 cp2 cp3] only [cp1] run") {
			t.Errorf("violations %q", v)
		}
	})
}

func TestEtcdDataHasAVolumeOfItsOwn(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		img := version("old", "v1.14.1")
		data := disk("virtio1", "data", 20, nil)
		b := l.box(cpAddr, disk("virtio0", "system", 10, l.installed(l.config(talosapi.Machine{
			Hostname: "cp1", ControlPlane: true, Installer: oldRef,
			Documents: []string{"apiVersion: v1alpha1\nkind: VolumeConfig\nname: ETCD\nprovisioning:\n  diskSelector:\n    match: disk.serial == 'data'\n  minSize: 1GiB\n"},
		}), img)), data)
		b.on()
		c := l.client(cpAddr, role.Admin)
		time.Sleep(time.Minute)
		must.Do(t, c.Bootstrap(t.Context(), &machineapi.BootstrapRequest{}))
		l.running(cpAddr)
		if d := talosapi.Describe(data.Media.Bytes()); !strings.HasPrefix(d, "ETCD ") || !strings.HasSuffix(d, " etcd voter cp1") {
			t.Errorf("data disk %s", d)
		}
		if d := talosapi.Describe(b.drives[0].Media.Bytes()); strings.Contains(d, "etcd voter") {
			t.Errorf("system disk %s", d)
		}

		// Talos refuses a configuration without the document for a node that runs, but a new system disk has it: etcd's
		// directory is on EPHEMERAL, and empty; the partition stays as it is.
		_, err := c.ApplyConfiguration(t.Context(), &machineapi.ApplyConfigurationRequest{Data: l.config(cp1(oldRef))})
		requireError(t, "a configuration without the volume", err, codes.InvalidArgument, "its VolumeConfig cannot be removed")
		kept := talosapi.Lasting(data.Media.Bytes())
		b.guest.Kill()
		b.drives[0] = disk("virtio0", "system", 10, l.installed(l.config(cp1(oldRef)), img))
		b.on()
		c = l.client(cpAddr, role.Admin)
		time.Sleep(time.Minute)
		if err := c.Bootstrap(t.Context(), &machineapi.BootstrapRequest{}); err != nil {
			t.Errorf("etcd's directory is not empty: %v", err)
		}
		l.running(cpAddr)
		must.Equal(t, "the data disk changed", kept, talosapi.Lasting(data.Media.Bytes()))
	})
}
