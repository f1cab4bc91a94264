package talosapi_test

import (
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
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/role"

	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
)

// quorum is control planes with EPHEMERAL, and so etcd, on a separate disk.
type quorum struct {
	*lab
	boxes map[string]*box
	data  map[string]world.Drive
}

func address(n int) string { return fmt.Sprintf("127.42.7.%d", 10+n) }

// newQuorum starts n control planes and waits until all are ready.
func newQuorum(t *testing.T, n int) *quorum {
	q := &quorum{lab: newLab(t), boxes: map[string]*box{}, data: map[string]world.Drive{}}
	var peers []talosapi.EtcdPeer
	for i := 1; i <= n; i++ {
		peers = append(peers, talosapi.EtcdPeer{Name: fmt.Sprintf("cp%d", i), Addr: netip.MustParseAddr(address(i))})
	}
	for i, member := range q.fw.FormEtcd(q.cluster, peers...) {
		content, err := talosapi.WithEtcd(talosapi.DataDisk("EPHEMERAL", nil), member)
		if err != nil {
			t.Fatal(err)
		}
		q.data[member.Name] = disk("virtio1", "data", 20, content)
		q.start(i+1, member.Name, member.Name)
	}
	t.Cleanup(func() {
		for _, b := range q.boxes {
			b.guest.Kill()
		}
	})
	for i := 1; i <= n; i++ {
		q.running(address(i))
	}
	return q
}

// start makes machine cpN from a new system disk and its existing data disk, and powers it
// on.
func (q *quorum) start(n int, machine, hostname string) {
	q.t.Helper()
	system, err := q.fw.Preinstalled(q.config(talosapi.Machine{
		Hostname: hostname, ControlPlane: true, Installer: oldRef,
		Documents: []string{"apiVersion: v1alpha1\nkind: VolumeConfig\nname: EPHEMERAL\nprovisioning:\n  diskSelector:\n    match: disk.serial == 'data'\n"},
	}), ukiOf(q.t, image("old")), true)
	if err != nil {
		q.t.Fatal(err)
	}
	b := q.box(9000+n, fmt.Sprintf("02:00:00:00:00:%02X", 10+n), disk("virtio0", "system", 10, system), q.data[machine])
	q.boxes[machine] = b
	b.on()
}

// blank gives a machine an empty data disk.
func (q *quorum) blank(machine string) {
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
			if _, err := fmt.Sscanf(m.ID, "%x", &id); err != nil {
				q.t.Fatal(err)
			}
			return id
		}
	}
	q.t.Fatalf("no member %s in %v", name, q.fw.EtcdMembers())
	return 0
}

// service is talosctl's view of the etcd service.
func (q *quorum) service(n int) string {
	q.t.Helper()
	list, err := q.admin(n).ServiceList(q.t.Context())
	if err != nil {
		q.t.Fatal(err)
	}
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
	s, err := get[*runtime.MachineStatus](q.t.Context(), q.admin(n), runtime.NewMachineStatus().Metadata())
	if err != nil {
		q.t.Fatal(err)
	}
	var text strings.Builder
	text.WriteString(fmt.Sprintf("%s ready=%t", s.TypedSpec().Stage, s.TypedSpec().Status.Ready))
	for _, u := range s.TypedSpec().Status.UnmetConditions {
		text.WriteString(" " + u.Name + ": " + u.Reason)
	}
	return text.String()
}

func (q *quorum) onScreen(text string) bool {
	return slices.ContainsFunc(q.lines(&q.screen), func(l string) bool { return strings.Contains(l, text) })
}

func want(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %s, want %s", what, got, want)
	}
}

func TestEtcdCaseAEmptyDataSameName(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQuorum(t, 3)
		old := q.id("cp3")
		q.kill("cp3")
		q.blank("cp3")
		time.Sleep(10 * time.Second)
		q.start(3, "cp3", "cp3")
		time.Sleep(18 * time.Second) // it joins after 15 s
		want(t, "members", q.members(), "cp1 cp2 cp3?")
		want(t, "service of the learner", q.service(3), "Running ?: Started task etcd for container etcd")
		time.Sleep(10 * time.Second)
		want(t, "members", q.members(), "cp1 cp2 cp3")
		if q.id("cp3") == old {
			t.Error("the member has its old ID")
		}
		q.running(address(3))
		want(t, "service", q.service(3), "Running OK: Health check successful")
		want(t, "data", talosapi.Describe(q.data["cp3"].Media.Bytes())[len("EPHEMERAL ")+73+1+16:], " etcd voter cp3")
		if v := q.fw.EtcdViolations(); len(v) > 0 {
			t.Errorf("violations %q", v)
		}
	})
}

func TestEtcdCaseBDataKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQuorum(t, 3)
		old, lasting := q.id("cp3"), talosapi.Lasting(q.data["cp3"].Media.Bytes())
		q.kill("cp3")
		q.start(3, "cp3", "cp3")
		q.running(address(3))
		want(t, "members", q.members(), "cp1 cp2 cp3")
		if q.id("cp3") != old {
			t.Error("the member has another ID")
		}
		want(t, "data", talosapi.Lasting(q.data["cp3"].Media.Bytes()), lasting)
	})
}

func TestEtcdCaseCEmptyDataOtherName(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQuorum(t, 3)
		q.kill("cp3")
		q.blank("cp3")
		time.Sleep(10 * time.Second)
		q.start(3, "cp3", "cp4")
		time.Sleep(5 * time.Minute)
		want(t, "members", q.members(), "cp1 cp2 cp3")
		want(t, "service", q.service(3), "Preparing ?: Running pre state")
		want(t, "machine", q.machine(3), "booting ready=true")
		if !q.onScreen("error adding member: etcdserver: unhealthy cluster") {
			t.Errorf("screen %q", q.lines(&q.screen))
		}
		if err := q.admin(1).EtcdRemoveMemberByID(t.Context(), &machineapi.EtcdRemoveMemberByIDRequest{MemberId: q.id("cp3")}); err != nil {
			t.Fatal(err)
		}
		q.running(address(3))
		want(t, "members", q.members(), "cp1 cp2 cp4")
	})
}

func TestEtcdCaseDRemovedWithItsDataKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQuorum(t, 3)
		q.kill("cp3")
		if err := q.admin(1).EtcdRemoveMemberByID(t.Context(), &machineapi.EtcdRemoveMemberByIDRequest{MemberId: q.id("cp3")}); err != nil {
			t.Fatal(err)
		}
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQuorum(t, 3)
		q.kill("cp3")
		q.blank("cp3")
		time.Sleep(10 * time.Second)
		// Only two of three run: etcd protects the quorum, so nothing happens.
		q.start(3, "cp3", "cp2")
		time.Sleep(time.Minute)
		want(t, "members", q.members(), "cp1 cp2 cp3")
		if !q.onScreen("error removing self from the member list: etcdserver: unhealthy cluster") {
			t.Errorf("screen %q", q.lines(&q.screen))
		}
		if err := q.admin(1).EtcdRemoveMemberByID(t.Context(), &machineapi.EtcdRemoveMemberByIDRequest{MemberId: q.id("cp3")}); err != nil {
			t.Fatal(err)
		}
		live := q.id("cp2")
		time.Sleep(time.Minute)
		if q.id("cp2") == live {
			t.Errorf("the live member is still there: %v", q.fw.EtcdMembers())
		}
		want(t, "the evicted machine", q.machine(2), "running ready=false services: etcd not running")
	})
}

func TestEtcdWithoutQuorumWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQuorum(t, 3)
		q.kill("cp2")
		q.kill("cp3")
		began := time.Now()
		if _, err := q.admin(1).EtcdMemberList(t.Context(), &machineapi.EtcdMemberListRequest{}); err == nil || !strings.Contains(err.Error(), "etcdserver: request timed out") || time.Since(began) < 7*time.Second {
			t.Errorf("members after %s: %v", time.Since(began), err)
		}
		short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if _, err := q.admin(1).EtcdMemberList(short, &machineapi.EtcdMemberListRequest{}); client.StatusCode(err).String() != "DeadlineExceeded" {
			t.Errorf("with a deadline: %v", err)
		}
		s, err := q.admin(1).EtcdStatus(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if m := s.GetMessages()[0].GetMemberStatus(); m.GetLeader() != 0 || !slices.Equal(m.GetErrors(), []string{"etcdserver: no leader"}) {
			t.Errorf("status %v", m)
		}
		time.Sleep(time.Minute)
		want(t, "service", q.service(1), "Running Fail: Health check failed: context deadline exceeded")
		want(t, "machine", q.machine(1), "running ready=false services: etcd not healthy")
		q.blank("cp3")
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		img := image("old")
		img.TalosVersion = "v1.14.1"
		data := disk("virtio1", "data", 20, nil)
		b := l.box(9001, "02:00:00:00:00:0B", disk("virtio0", "system", 10, l.installed(l.config(talosapi.Machine{
			Hostname: "cp1", ControlPlane: true, Installer: oldRef,
			Documents: []string{"apiVersion: v1alpha1\nkind: VolumeConfig\nname: ETCD\nprovisioning:\n  diskSelector:\n    match: disk.serial == 'data'\n  minSize: 1GiB\n"},
		}), img)), data)
		b.on()
		defer b.guest.Kill()
		c := l.client(cpAddr, role.Admin)
		time.Sleep(time.Minute)
		if err := c.Bootstrap(t.Context(), &machineapi.BootstrapRequest{}); err != nil {
			t.Fatal(err)
		}
		l.running(cpAddr)
		if d := talosapi.Describe(data.Media.Bytes()); !strings.HasPrefix(d, "ETCD ") || !strings.HasSuffix(d, " etcd voter cp1") {
			t.Errorf("data disk %s", d)
		}
		if d := talosapi.Describe(b.drives[0].Media.Bytes()); strings.Contains(d, "etcd voter") {
			t.Errorf("system disk %s", d)
		}
	})
}
