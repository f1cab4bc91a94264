package talosapi_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"

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
	must.Equal(q.t, "violations", 0, len(q.fw.EtcdViolations()))
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
		q.shows("error adding member: etcdserver: unhealthy cluster")
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
		q.shows("the member has been permanently removed from the cluster")
	})
}

func TestEtcdADuplicateNameEvictsALiveMember(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum) {
		q.replace("cp2") // only two of three run: etcd protects the quorum, so nothing happens
		time.Sleep(time.Minute)
		want(t, "members", q.members(), "cp1 cp2 cp3")
		q.shows("error removing self from the member list: etcdserver: unhealthy cluster")
		q.remove("cp3")
		live := q.id("cp2")
		time.Sleep(time.Minute)
		must.Equal(t, "the live member is still there", false, q.id("cp2") == live)
		want(t, "the evicted machine", q.machine(2), "running ready=false services: etcd not running")
	})
}

func TestEtcdWithoutQuorumWaits(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum) {
		q.kill("cp2")
		q.kill("cp3")
		began := time.Now()
		must.Fail(t, must.Err(q.admin(1).EtcdMemberList(t.Context(), &machineapi.EtcdMemberListRequest{})), "etcdserver: request timed out")
		must.Take(t, began, 7*time.Second, time.Minute)
		short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		requireError(t, "with a deadline", must.Err(q.admin(1).EtcdMemberList(short, &machineapi.EtcdMemberListRequest{})), codes.DeadlineExceeded, "")
		m := must.Get(q.admin(1).EtcdStatus(t.Context()))(t).GetMessages()[0].GetMemberStatus()
		must.Equal(t, "leader, errors", []any{uint64(0), []string{"etcdserver: no leader"}}, []any{m.GetLeader(), m.GetErrors()})
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
		v := q.fw.EtcdViolations()
		must.Equal(t, "violations", 1, len(v))
		must.Contain(t, "violation", v[0], "of the voting members [cp1 cp2 cp3] only [cp1] run")
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
		d := talosapi.Describe(data.Media.Bytes())
		must.Hold(t, strings.HasPrefix(d, "ETCD ") && strings.HasSuffix(d, " etcd voter cp1"), "data disk %s", d)
		must.Equal(t, "a voter is on the system disk", false, strings.Contains(talosapi.Describe(b.drives[0].Media.Bytes()), "etcd voter"))

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
		must.Do(t, c.Bootstrap(t.Context(), &machineapi.BootstrapRequest{})) // etcd's directory is empty
		l.running(cpAddr)
		must.Equal(t, "the data disk changed", kept, talosapi.Lasting(data.Media.Bytes()))
	})
}

func TestBootstrapFormsANewCluster(t *testing.T) {
	inQuorum(t, 1, func(t *testing.T, q *quorum) {
		q.kill("cp1")
		q.wipe("cp1")
		q.start(1, "cp1", "cp1")
		time.Sleep(5 * time.Minute)
		must.Do(t, q.admin(1).Bootstrap(t.Context(), &machineapi.BootstrapRequest{}))
		q.running(address(1))
		must.Equal(t, "members", "cp1", q.members())
	})
}

func TestEtcdForfeitLeadership(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum) {
		for n := 1; n <= 3; n++ {
			led := q.leader(n)
			answer := must.Get(q.admin(n).EtcdForfeitLeadership(t.Context(), &machineapi.EtcdForfeitLeadershipRequest{}))(t)
			to := answer.GetMessages()[0].GetMember()
			if mine := q.id("cp" + string(rune('0'+n))); led == 0 || mine == led && q.id(to) != q.leader(n) || mine != led && to != "" {
				t.Errorf("cp%d gave leadership to %q; it was led by %x, is led by %x", n, to, led, q.leader(n))
			}
		}
	})
}

func (q *quorum) leader(n int) uint64 {
	q.t.Helper()
	s := must.Get(q.admin(n).EtcdStatus(q.t.Context()))(q.t)
	return s.GetMessages()[0].GetMemberStatus().GetLeader()
}

func TestEtcdLeaveCluster(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum) {
		old := q.id("cp3")
		must.Do(t, q.admin(3).EtcdLeaveCluster(t.Context(), &machineapi.EtcdLeaveClusterRequest{}))
		want(t, "members", q.members(), "cp1 cp2")
		want(t, "service", q.service(3), "Finished ?: Service finished successfully")
		want(t, "machine", q.machine(3), "running ready=false services: etcd not running")
		must.Equal(t, "etcd's data is there", false, strings.Contains(talosapi.Describe(q.data["cp3"].Media.Bytes()), "etcd"))
		must.Get(q.admin(3).EtcdMemberList(t.Context(), &machineapi.EtcdMemberListRequest{}))(t) // it asks the others
		// Calls to an etcd that does not run hang: the caller's deadline ends them.
		began := time.Now()
		patient, cancel := context.WithTimeout(t.Context(), time.Minute)
		must.Equal(t, "its own status", false, must.Err(q.admin(3).EtcdStatus(patient)) == nil)
		must.Take(t, began, time.Minute, time.Minute)
		cancel()
		must.Do(t, q.admin(3).Reboot(t.Context())) // it joins again
		time.Sleep(10 * time.Second)
		q.running(address(3))
		want(t, "members", q.members(), "cp1 cp2 cp3")
		must.Equal(t, "the member has its old ID", false, q.id("cp3") == old)
		q.intact()
	})
}

func TestEtcdOfASingleControlPlane(t *testing.T) {
	inQuorum(t, 1, func(t *testing.T, q *quorum) {
		c := q.admin(1)
		_, err := c.EtcdForfeitLeadership(t.Context(), &machineapi.EtcdForfeitLeadershipRequest{})
		requireError(t, "forfeit", err, codes.Unknown, "failed to forfeit leadership: cannot forfeit leadership, only one member")
		requireError(t, "leave", c.EtcdLeaveCluster(t.Context(), &machineapi.EtcdLeaveClusterRequest{}), codes.Unknown, "etcdserver: re-configuration failed due to not enough started members")
		err = c.EtcdRemoveMemberByID(t.Context(), &machineapi.EtcdRemoveMemberByIDRequest{MemberId: 42})
		requireError(t, "remove nobody", err, codes.NotFound, "failed to remove member 42: etcdserver: member not found")
		requireError(t, "bootstrap", c.Bootstrap(t.Context(), &machineapi.BootstrapRequest{}), codes.AlreadyExists, "etcd data directory is not empty")
		q.kill("cp1")
		q.start(1, "cp1", "cp1")
		q.running(address(1))
		must.Equal(t, "violations", 1, len(q.fw.EtcdViolations()))
	})
}

func TestEtcdCallsThatAreRefused(t *testing.T) {
	inQuorum(t, 1, func(t *testing.T, q *quorum) {
		_, open := q.blank(workerAddr, image("new"))
		ctx := t.Context()
		requireError(t, "in maintenance mode", must.Err(open.EtcdMemberList(ctx, &machineapi.EtcdMemberListRequest{})), codes.Unimplemented, "machine type is not set, cannot use member list API")
		requireError(t, "snapshot in maintenance mode", snapshotError(ctx, open), codes.PermissionDenied, "not authorized")
		apply(t, open, q.config(talosapi.Machine{Hostname: "wk1", Installer: newRef}))
		q.running(workerAddr)
		worker := q.client(workerAddr, role.Admin)
		requireError(t, "status on a worker", must.Err(worker.EtcdStatus(ctx)), codes.Unimplemented, "etcd status is only available on control plane nodes")
		requireError(t, "snapshot on a worker", snapshotError(ctx, worker), codes.Unimplemented, "etcd snapshot is only available on control plane nodes")
		reader := q.client(address(1), role.Reader)
		requireError(t, "leave as a reader", reader.EtcdLeaveCluster(ctx, &machineapi.EtcdLeaveClusterRequest{}), codes.PermissionDenied, "not authorized")
	})
}

// snapshot reads a whole snapshot.
func snapshot(ctx context.Context, c *client.Client) ([]byte, error) {
	r, err := c.EtcdSnapshot(ctx, &machineapi.EtcdSnapshotRequest{})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

func snapshotError(ctx context.Context, c *client.Client) error {
	_, err := snapshot(ctx, c)
	return err
}

// raised is those alarms as text.
func raised(alarms []*machineapi.EtcdMemberAlarm) (text string) {
	for _, a := range alarms {
		text += fmt.Sprintf("%s of %d;", a.GetAlarm(), a.GetMemberId())
	}
	return text
}

func TestEtcdFaults(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum) {
		q.fw.BreakEtcd(9003, talosapi.EtcdFault{Down: true})
		time.Sleep(time.Minute)
		want(t, "service", q.service(3), `Waiting ?: Error running Containerd(etcd), going to restart forever: task "etcd" failed: exit code 1`)
		want(t, "machine", q.machine(3), "running ready=false services: etcd not running")
		want(t, "members", q.members(), "cp1 cp2 cp3")
		q.fw.BreakEtcd(9003, talosapi.EtcdFault{})
		q.running(address(3))

		q.fw.BreakEtcd(9002, talosapi.EtcdFault{NoSpace: true})
		time.Sleep(time.Second)
		noSpace := fmt.Sprint("NOSPACE of ", q.id("cp2"), ";")
		operator := q.client(address(1), role.Operator)
		alarms := func() string {
			answer := must.Get(operator.EtcdAlarmList(t.Context()))(t)
			return raised(answer.GetMessages()[0].GetMemberAlarms())
		}
		want(t, "alarms", alarms(), noSpace)
		q.fw.BreakEtcd(9002, talosapi.EtcdFault{})
		time.Sleep(time.Second)
		want(t, "alarms", alarms(), "")
		q.fw.BreakEtcd(9002, talosapi.EtcdFault{NoSpace: true})
		time.Sleep(time.Second)
		requireError(t, "a reader's disarm", must.Err(q.client(address(1), role.Reader).EtcdAlarmDisarm(t.Context())), codes.PermissionDenied, "not authorized")
		disarmed := must.Get(operator.EtcdAlarmDisarm(t.Context()))(t)
		want(t, "disarmed", raised(disarmed.GetMessages()[0].GetMemberAlarms()), noSpace)
		want(t, "alarms", alarms(), "")
		q.fw.BreakEtcd(9003, talosapi.EtcdFault{Learner: true})
		q.replace("cp3")
		time.Sleep(5 * time.Minute)
		want(t, "members", q.members(), "cp1 cp2 cp3?")
		want(t, "service", q.service(3), "Running Fail: Health check failed: etcdserver: rpc not supported for learner")
		want(t, "machine", q.machine(3), "booting ready=false services: etcd not healthy")
		q.fw.BreakEtcd(9003, talosapi.EtcdFault{})
		q.running(address(3))
		want(t, "members", q.members(), "cp1 cp2 cp3")
	})
}

func TestEtcdStartsDuringTheISOBoot(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum) {
		old := q.id("cp3")
		q.kill("cp3")
		_, open := q.blank(address(3), image("new"), q.data["cp3"])
		apply(t, open, q.config(talosapi.Machine{Hostname: "cp3", ControlPlane: true, Installer: newRef}))
		time.Sleep(8 * time.Second)
		want(t, "stage", strings.Fields(q.machine(3))[0], "installing")
		want(t, "service", q.service(3), "Running OK: Health check successful")
		time.Sleep(15 * time.Second)
		q.running(address(3))
		must.Equal(t, "the member has another ID", old, q.id("cp3"))
		q.intact()
	})
}

func TestALearnerStaysOne(t *testing.T) {
	type learner struct {
		learns  time.Duration // how long it can't be promoted
		reboots bool
		members string
	}
	each(t, map[string]learner{
		"it is promoted in time":             {9 * time.Minute, false, "cp1 cp2 cp3"},
		"Talos gives up":                     {11 * time.Minute, false, "cp1 cp2 cp3?"},
		"its machine starts again meanwhile": {time.Minute, true, "cp1 cp2 cp3?"},
	}, func(t *testing.T, _ string, c learner) {
		q := newQuorum(t, 3)
		q.fw.BreakEtcd(9003, talosapi.EtcdFault{Learner: true})
		q.replace("cp3")
		time.Sleep(c.learns)
		if c.reboots {
			q.kill("cp3")
		}
		q.fw.BreakEtcd(9003, talosapi.EtcdFault{})
		if c.reboots {
			q.start(3, "cp3", "cp3")
		}
		time.Sleep(5 * time.Minute)
		want(t, "members", q.members(), c.members)
	})
}

func TestBootstrapFromASnapshot(t *testing.T) {
	inQuorum(t, 1, func(t *testing.T, q *quorum) {
		ctx := t.Context()
		saved := must.Get(snapshot(ctx, q.client(address(1), role.EtcdBackup)))(t)
		old := q.id("cp1")
		q.kill("cp1")
		q.wipe("cp1")
		q.start(1, "cp1", "cp1")
		time.Sleep(5 * time.Minute)
		want(t, "machine", q.machine(1), "booting ready=true")
		c := q.admin(1)
		requireError(t, "members", must.Err(c.EtcdMemberList(ctx, &machineapi.EtcdMemberListRequest{})), codes.Unavailable, "connection refused")
		operator := q.client(address(1), role.Operator)
		requireError(t, "as an operator", must.Err(operator.EtcdRecover(ctx, bytes.NewReader(saved))), codes.PermissionDenied, "not authorized")

		recover := &machineapi.BootstrapRequest{RecoverEtcd: true}
		flipped := bytes.Clone(saved)
		flipped[len(flipped)-1] ^= 1
		for _, bad := range []struct {
			name string
			file []byte
			text string
		}{
			{"nothing was uploaded", nil, "Failed ?: Failed to run pre stage: error verifying snapshot: stat /var/lib/etcd.snapshot: no such file or directory"},
			{"a wrong checksum", flipped, "Failed ?: Failed to run pre stage: error recovering from the snapshot: expected sha256 "},
			{"no checksum", saved[:len(saved)-32], "Failed ?: Failed to run pre stage: error recovering from the snapshot: snapshot missing hash but --skip-hash-check=false"},
		} {
			if bad.file != nil {
				must.Get(c.EtcdRecover(ctx, bytes.NewReader(bad.file)))(t)
			}
			must.Do(t, c.Bootstrap(ctx, recover))
			time.Sleep(time.Minute)
			must.Contain(t, bad.name+": service", "\n"+q.service(1), "\n"+bad.text)
			want(t, bad.name, q.machine(1), "booting ready=false services: etcd not running")
		}
		must.Get(c.EtcdRecover(ctx, bytes.NewReader(saved)))(t)
		must.Do(t, c.Bootstrap(ctx, recover))
		q.running(address(1))
		want(t, "members", q.members(), "cp1")
		must.Equal(t, "the member has its old ID", false, q.id("cp1") == old)
		requireError(t, "again", c.Bootstrap(ctx, recover), codes.AlreadyExists, "etcd data directory is not empty")
	})
}

// TestTypeInit: a control plane of machine.type init without data begins an etcd of its own, beside the one
// that runs, and takes no snapshot; with data it is like any other.
func TestTypeInit(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum) {
		q.as["cp1"] = "init"
		again := func() {
			q.kill("cp1")
			q.start(1, "cp1", "cp1")
			q.running(address(1))
		}
		again()
		want(t, "with its data", q.members(), "cp1 cp2 cp3")
		want(t, "second etcds", strings.Join(q.fw.BootstrapViolations(), "; "), "")
		q.wipe("cp1")
		again()
		want(t, "without", q.members(), "cp1")
		want(t, "second etcds", strings.Join(q.fw.BootstrapViolations(), "; "), "Talos cluster "+q.cluster.Secrets.Cluster.ID+": cp1 formed etcd number 2 of that cluster")
		requireError(t, "a bootstrap", q.admin(1).Bootstrap(t.Context(), &machineapi.BootstrapRequest{RecoverEtcd: true}), codes.AlreadyExists, "not empty")
	})
}

func TestCallsArePassedOn(t *testing.T) {
	inQuorum(t, 2, func(t *testing.T, q *quorum) {
		q.worker()
		q.running(workerAddr)
		reader := q.client(address(1), role.Reader)
		for target, want := range map[string]string{address(1): "cp1", address(2): "cp2", workerAddr: "wk1", "wk1": "wk1"} {
			got, err := hostname(client.WithNode(t.Context(), target), reader)
			must.Equal(t, target, []any{nil, want}, []any{err, got})
		}
		requireError(t, "nobody there", must.Err(reader.Version(client.WithNode(t.Context(), "127.42.7.99"))), codes.Unavailable, "no route to host")
		requireError(t, "no such name", must.Err(reader.Version(client.WithNode(t.Context(), "nobody"))), codes.Internal, `invalid target "nobody"`)

		worker := q.client(workerAddr, role.Admin)
		want(t, "a worker of itself", must.Get(hostname(client.WithNode(t.Context(), workerAddr), worker))(t), "wk1")
	})
}

func TestAnswersAreJoined(t *testing.T) {
	inQuorum(t, 2, func(t *testing.T, q *quorum) {
		//lint:ignore SA1019 it is under test
		ctx := client.WithNodes(t.Context(), address(1), address(2), "127.42.7.99")
		answer := must.Get(q.admin(1).MachineClient.Hostname(ctx, &emptypb.Empty{}))(t)
		var got []string
		for _, m := range answer.GetMessages() {
			md := m.GetMetadata()
			//lint:ignore SA1019 answers are joined by it
			got = append(got, fmt.Sprintf("%s %s failed=%v", md.GetHostname(), m.GetHostname(), md.GetError() != ""))
		}
		want := []string{address(1) + " cp1 failed=false", address(2) + " cp2 failed=false", "127.42.7.99  failed=true"}
		must.Equal(t, "got", want, got)
		requireError(t, "resources of several machines", must.Err(hostname(ctx, q.admin(1))), codes.InvalidArgument, "one-2-many proxying is not supported for method /cosi.resource.State/Get")
	})
}

func TestResetOfStateLeadsToMaintenance(t *testing.T) {
	inQuorum(t, 2, func(t *testing.T, q *quorum) {
		c := q.admin(2)
		err := c.ResetGeneric(t.Context(), &machineapi.ResetRequest{SystemPartitionsToWipe: []*machineapi.ResetPartitionSpec{{Label: "NONE", Wipe: true}}})
		requireError(t, "no such volume", err, codes.Unknown, `failed to get volume status with label "NONE"`)
		err = c.ResetGeneric(t.Context(), &machineapi.ResetRequest{UserDisksToWipe: []string{"/dev/vda"}})
		requireError(t, "the system disk", err, codes.Unknown, "reset user disk failed: device /dev/vda is the system disk")
		must.Do(t, c.ResetGeneric(t.Context(), &machineapi.ResetRequest{
			Graceful: true, Reboot: true, SystemPartitionsToWipe: []*machineapi.ResetPartitionSpec{{Label: "STATE", Wipe: true}},
		}))
		time.Sleep(time.Minute)
		want(t, "members", q.members(), "cp1")
		apply(t, q.maintained(address(2)), q.conf("cp2"))
		q.running(address(2))
		want(t, "members", q.members(), "cp1 cp2")
		q.reboot(q.admin(2), func() error { return q.admin(2).Reboot(t.Context()) }) // the configuration is kept
	})
}
