package talosapi_test

import (
	"context"
	"crypto/sha256"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	etcdres "github.com/siderolabs/talos/pkg/machinery/resources/etcd"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"

	"github.com/recast-sh/recast/internal/sim/talosapi"
)

func TestEtcdMemberListAndStatus(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQuorum(t, 3)
		var leaders []uint64
		for n := 1; n <= 3; n++ {
			c := q.client(address(n), role.Reader)
			s, err := c.EtcdStatus(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			m := s.GetMessages()[0].GetMemberStatus()
			leaders = append(leaders, m.GetLeader())
			if m.GetIsLearner() || len(m.GetErrors()) > 0 || m.GetProtocolVersion() == "" || m.GetRaftIndex() != m.GetRaftAppliedIndex() {
				t.Errorf("status %v", m)
			}
			local, err := get[*etcdres.Member](t.Context(), c, etcdres.NewMember(etcdres.NamespaceName, etcdres.LocalMemberID).Metadata())
			if err != nil || local.TypedSpec().MemberID != etcdres.FormatMemberID(m.GetMemberId()) {
				t.Errorf("local member %v, status has %x: %v", local, m.GetMemberId(), err)
			}
		}
		if leaders[0] == 0 || leaders[0] != leaders[1] || leaders[1] != leaders[2] {
			t.Errorf("leaders %x", leaders)
		}
		list, err := q.client(address(1), role.Reader).EtcdMemberList(t.Context(), &machineapi.EtcdMemberListRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range list.GetMessages()[0].GetMembers() {
			n := int(m.GetHostname()[2] - '0')
			if m.GetId() != q.id(m.GetHostname()) || m.GetIsLearner() ||
				!cmp.Equal(m.GetPeerUrls(), []string{"https://" + address(n) + ":2380"}) || !cmp.Equal(m.GetClientUrls(), []string{"https://" + address(n) + ":2379"}) {
				t.Errorf("member %v", m)
			}
		}
	})
}

func TestEtcdForfeitLeadership(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQuorum(t, 3)
		before := q.leader(1)
		for n := 1; n <= 3; n++ {
			led := q.leader(1)
			answer, err := q.admin(n).EtcdForfeitLeadership(t.Context(), &machineapi.EtcdForfeitLeadershipRequest{})
			if err != nil {
				t.Fatal(err)
			}
			to := answer.GetMessages()[0].GetMember()
			if mine := q.id("cp" + string(rune('0'+n))); mine == led && q.id(to) != q.leader(1) || mine != led && to != "" {
				t.Errorf("cp%d gave leadership to %q; it was led by %x, is led by %x", n, to, led, q.leader(1))
			}
		}
		if before == 0 {
			t.Error("there was no leader")
		}
	})
}

func (q *quorum) leader(n int) uint64 {
	q.t.Helper()
	s, err := q.admin(n).EtcdStatus(q.t.Context())
	if err != nil {
		q.t.Fatal(err)
	}
	return s.GetMessages()[0].GetMemberStatus().GetLeader()
}

func TestEtcdLeaveCluster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQuorum(t, 3)
		old := q.id("cp3")
		if err := q.admin(3).EtcdLeaveCluster(t.Context(), &machineapi.EtcdLeaveClusterRequest{}); err != nil {
			t.Fatal(err)
		}
		want(t, "members", q.members(), "cp1 cp2")
		want(t, "service", q.service(3), "Finished ?: Service finished successfully")
		want(t, "machine", q.machine(3), "running ready=false services: etcd not running")
		if d := talosapi.Describe(q.data["cp3"].Media.Bytes()); strings.Contains(d, "etcd") {
			t.Errorf("data %s", d)
		}
		if _, err := q.admin(3).EtcdMemberList(t.Context(), &machineapi.EtcdMemberListRequest{}); err != nil {
			t.Errorf("it asks the others: %v", err)
		}
		// Calls to an etcd that does not run hang: the caller's deadline ends them.
		began := time.Now()
		patient, cancel := context.WithTimeout(t.Context(), time.Minute)
		if _, err := q.admin(3).EtcdStatus(patient); err == nil || time.Since(began) != time.Minute {
			t.Errorf("its own status after %s: %v", time.Since(began), err)
		}
		cancel()
		if err := q.admin(3).Reboot(t.Context()); err != nil { // it joins again
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		q.running(address(3))
		want(t, "members", q.members(), "cp1 cp2 cp3")
		if q.id("cp3") == old {
			t.Error("the member has its old ID")
		}
		if v := q.fw.EtcdViolations(); len(v) > 0 {
			t.Errorf("violations %q", v)
		}
	})
}

func TestEtcdOfASingleControlPlane(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQuorum(t, 1)
		c := q.admin(1)
		_, err := c.EtcdForfeitLeadership(t.Context(), &machineapi.EtcdForfeitLeadershipRequest{})
		requireError(t, "forfeit", err, codes.Unknown, "failed to forfeit leadership: cannot forfeit leadership, only one member")
		err = c.EtcdLeaveCluster(t.Context(), &machineapi.EtcdLeaveClusterRequest{})
		requireError(t, "leave", err, codes.Unknown, "etcdserver: re-configuration failed due to not enough started members")
		err = c.EtcdRemoveMemberByID(t.Context(), &machineapi.EtcdRemoveMemberByIDRequest{MemberId: 42})
		requireError(t, "remove nobody", err, codes.NotFound, "failed to remove member 42: etcdserver: member not found")
		requireError(t, "bootstrap", c.Bootstrap(t.Context(), &machineapi.BootstrapRequest{}), codes.AlreadyExists, "etcd data directory is not empty")
		q.kill("cp1")
		q.start(1, "cp1", "cp1")
		q.running(address(1))
		if v := q.fw.EtcdViolations(); len(v) != 1 {
			t.Errorf("violations %q", v)
		}
	})
}

func requireError(t *testing.T, what string, err error, code codes.Code, text string) {
	t.Helper()
	if client.StatusCode(err) != code || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: %v, want %s: %s", what, err, code, text)
	}
}

func TestBootstrapFormsANewCluster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQuorum(t, 1)
		q.kill("cp1")
		q.blank("cp1")
		q.start(1, "cp1", "cp1")
		time.Sleep(5 * time.Minute)
		want(t, "machine", q.machine(1), "booting ready=true")
		_, err := q.admin(1).EtcdMemberList(t.Context(), &machineapi.EtcdMemberListRequest{})
		requireError(t, "members", err, codes.Unavailable, "connection refused")
		if err := q.admin(1).Bootstrap(t.Context(), &machineapi.BootstrapRequest{}); err != nil {
			t.Fatal(err)
		}
		q.running(address(1))
		want(t, "members", q.members(), "cp1")
	})
}

func TestEtcdCallsThatAreRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQuorum(t, 1)
		q.installers[oldRef] = image("old")
		wk := q.box(9011, "02:00:00:00:00:1F", disk("virtio0", "system", 10, nil), cdrom(q.iso(image("old"))))
		wk.on()
		defer func() { wk.guest.Kill() }()
		open := q.insecure(workerAddr)
		q.awaitStage(open, runtime.MachineStageMaintenance)
		ctx := t.Context()
		_, err := open.EtcdMemberList(ctx, &machineapi.EtcdMemberListRequest{})
		requireError(t, "in maintenance mode", err, codes.Unimplemented, "machine type is not set, cannot use member list API")
		_, err = open.EtcdSnapshot(ctx, &machineapi.EtcdSnapshotRequest{})
		if err == nil {
			err = snapshotError(ctx, open)
		}
		requireError(t, "snapshot in maintenance mode", err, codes.PermissionDenied, "not authorized")
		apply(t, open, q.config(talosapi.Machine{Hostname: "wk1", Installer: oldRef}))
		q.running(workerAddr)
		worker := q.client(workerAddr, role.Admin)
		_, err = worker.EtcdMemberList(ctx, &machineapi.EtcdMemberListRequest{})
		requireError(t, "members on a worker", err, codes.Unimplemented, "member list is only available on control plane nodes")
		_, err = worker.EtcdStatus(ctx)
		requireError(t, "status on a worker", err, codes.Unimplemented, "etcd status is only available on control plane nodes")
		requireError(t, "snapshot on a worker", snapshotError(ctx, worker), codes.Unimplemented, "etcd snapshot is only available on control plane nodes")
		requireError(t, "bootstrap of a worker", worker.Bootstrap(ctx, &machineapi.BootstrapRequest{}), codes.Unimplemented, "bootstrap is only available on control plane nodes")
		reader := q.client(address(1), role.Reader)
		requireError(t, "leave as a reader", reader.EtcdLeaveCluster(ctx, &machineapi.EtcdLeaveClusterRequest{}), codes.PermissionDenied, "not authorized")
		requireError(t, "snapshot as a reader", snapshotError(ctx, reader), codes.PermissionDenied, "not authorized")
		_, err = q.client(address(1), role.Operator).EtcdForfeitLeadership(ctx, &machineapi.EtcdForfeitLeadershipRequest{})
		requireError(t, "forfeit as an operator", err, codes.PermissionDenied, "not authorized")
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

func TestEtcdSnapshot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQuorum(t, 3)
		q.kill("cp2")
		q.kill("cp3") // a snapshot needs no quorum
		for name, c := range map[string]struct {
			fault talosapi.SnapshotFault
			whole bool // the size is right
			sum   bool
			err   bool
		}{
			"whole":   {talosapi.SnapshotWhole, true, true, false},
			"cut":     {talosapi.SnapshotCut, false, false, false},
			"flipped": {talosapi.SnapshotFlipped, true, false, false},
			"broken":  {talosapi.SnapshotBroken, false, false, true},
		} {
			q.fw.BreakEtcd(9001, talosapi.EtcdFault{Snapshot: c.fault})
			b, err := snapshot(t.Context(), q.client(address(1), role.EtcdBackup))
			if (err != nil) != c.err {
				t.Errorf("%s: %v", name, err)
			}
			if len(b) < 1000 {
				t.Fatalf("%s: %d bytes", name, len(b))
			}
			if whole := len(b)%512 == sha256.Size; whole != c.whole {
				t.Errorf("%s: %d bytes", name, len(b))
			}
			body := b[:len(b)-sha256.Size]
			if sum := sha256.Sum256(body); (string(sum[:]) == string(b[len(body):])) != c.sum {
				t.Errorf("%s: the checksum is right: %t", name, !c.sum)
			}
		}
	})
}

func TestEtcdFaults(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQuorum(t, 3)
		q.fw.BreakEtcd(9003, talosapi.EtcdFault{Down: true})
		time.Sleep(time.Minute)
		want(t, "service", q.service(3), `Waiting ?: Error running Containerd(etcd), going to restart forever: task "etcd" failed: exit code 1`)
		want(t, "machine", q.machine(3), "running ready=false services: etcd not running")
		want(t, "members", q.members(), "cp1 cp2 cp3")
		q.fw.BreakEtcd(9003, talosapi.EtcdFault{})
		q.running(address(3))

		q.fw.BreakEtcd(9002, talosapi.EtcdFault{NoSpace: true})
		time.Sleep(time.Second)
		alarms, err := q.admin(1).EtcdAlarmList(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if list := alarms.GetMessages()[0].GetMemberAlarms(); len(list) != 1 || list[0].GetMemberId() != q.id("cp2") || list[0].GetAlarm() != machineapi.EtcdMemberAlarm_NOSPACE {
			t.Errorf("alarms %v", list)
		}
		q.fw.BreakEtcd(9002, talosapi.EtcdFault{})
		time.Sleep(time.Second)
		if alarms, err = q.admin(1).EtcdAlarmList(t.Context()); err != nil || len(alarms.GetMessages()[0].GetMemberAlarms()) > 0 {
			t.Errorf("alarms %v, %v", alarms, err)
		}

		q.kill("cp3")
		q.blank("cp3")
		q.fw.BreakEtcd(9003, talosapi.EtcdFault{Learner: true})
		time.Sleep(10 * time.Second)
		q.start(3, "cp3", "cp3")
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQuorum(t, 3)
		q.installers[newRef] = image("new")
		old := q.id("cp3")
		q.kill("cp3")
		b := q.box(9003, "02:00:00:00:00:0D", disk("virtio0", "fresh", 10, nil), q.data["cp3"], cdrom(q.iso(image("new"))))
		q.boxes["cp3"] = b
		b.on()
		open := q.insecure(address(3))
		q.awaitStage(open, runtime.MachineStageMaintenance)
		apply(t, open, q.config(talosapi.Machine{Hostname: "cp3", ControlPlane: true, Installer: newRef, InstallSerial: "fresh"}))
		time.Sleep(8 * time.Second)
		want(t, "stage", strings.Fields(q.machine(3))[0], "installing")
		want(t, "service", q.service(3), "Running OK: Health check successful")
		time.Sleep(15 * time.Second)
		q.running(address(3))
		if q.id("cp3") != old {
			t.Error("the member has another ID")
		}
		if v := q.fw.EtcdViolations(); len(v) > 0 {
			t.Errorf("violations %q", v)
		}
	})
}

func TestALearnerStaysOne(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		learns  time.Duration // how long it can't be promoted
		reboots bool
		members string
	}{
		"it is promoted in time":             {9 * time.Minute, false, "cp1 cp2 cp3"},
		"Talos gives up":                     {11 * time.Minute, false, "cp1 cp2 cp3?"},
		"its machine starts again meanwhile": {time.Minute, true, "cp1 cp2 cp3?"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := newQuorum(t, 3)
				q.kill("cp3")
				q.blank("cp3")
				q.fw.BreakEtcd(9003, talosapi.EtcdFault{Learner: true})
				time.Sleep(10 * time.Second)
				q.start(3, "cp3", "cp3")
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
		})
	}
}
