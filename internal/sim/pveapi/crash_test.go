package pveapi_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/world"
)

// cluster adds a third host, so that the loss of one keeps the quorum.
func (l *lab) cluster(t *testing.T) {
	t.Helper()
	l.world.AddHost("pve3")
	l.world.AddStorage(world.Storage{ID: "rbd", Type: "rbd", Shared: true, Content: []string{"images"}})
}

// TestQuorumByVotes: each host has one vote, and a majority is needed.
func TestQuorumByVotes(t *testing.T) {
	t.Parallel()
	type row struct {
		hosts int
		down  []string
		want  bool
	}
	tests := map[string]row{
		"two of two":    {hosts: 2, want: true},
		"one of two":    {hosts: 2, down: []string{"pve2"}},
		"two of three":  {hosts: 3, down: []string{"pve3"}, want: true},
		"one of three":  {hosts: 3, down: []string{"pve2", "pve3"}},
		"two of four":   {hosts: 4, down: []string{"pve2", "pve3"}},
		"three of four": {hosts: 4, down: []string{"pve2"}, want: true},
	}
	inEachLab(t, tests, func(t *testing.T, l *lab, test row) {
		for _, host := range []string{"pve3", "pve4"}[:test.hosts-2] {
			l.world.AddHost(host)
		}
		for _, host := range test.down {
			l.world.CrashHost(host)
		}
		status := l.do("GET", "/cluster/status").Data.([]any)[0].(map[string]any)
		if quorate := status["quorate"] == 1.0; quorate != test.want || l.world.Quorate() != test.want {
			t.Errorf("quorate: %v", quorate)
		}
		wantCreate := "200 OK"
		if !test.want {
			wantCreate = "500 cluster not ready - no quorum?"
		}
		if got := l.do("POST", "/nodes/pve1/qemu", "vmid=9012").Status; got != wantCreate {
			t.Errorf("%s, want %s", got, wantCreate)
		}
		for _, host := range test.down {
			l.world.BootHost(host)
		}
		if !l.world.Quorate() {
			t.Error("no quorum with all hosts")
		}
	})
}

// TestBootOrder: VMs with an order first, then by number, with startup delays, and only with quorum.
func TestBootOrder(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		for id, startup := range map[int]string{9021: "", 9022: "order=2", 9023: "1,up=20", 9024: "order=2,up=0", 9025: "up=30"} {
			config := map[string]string{"onboot": "1"}
			if startup != "" {
				config["startup"] = startup
			}
			must(t, l.world.DefineVM("pve2", id, config, nil))
		}
		must(t, l.world.DefineVM("pve2", 9026, map[string]string{"onboot": "0"}, nil))
		l.world.CrashHost("pve2")
		l.world.SetQuorum(false)
		l.world.BootHost("pve2")
		time.Sleep(time.Minute + time.Second/2) // between two checks of the quorum
		began := time.Now()
		l.world.SetQuorum(true)
		time.Sleep(3 * time.Minute)
		started := map[int]time.Duration{}
		for _, vm := range l.world.VMs() {
			if vm.Running {
				started[vm.ID] = vm.Started.Sub(began).Round(time.Second)
			}
		}
		second := time.Second
		want := map[int]time.Duration{9023: 2 * second, 9022: 23 * second, 9024: 27 * second, 9021: 28 * second, 9025: 32 * second}
		if diff := cmp.Diff(want, started); diff != "" {
			t.Error(diff)
		}
	})
}

// TestFencing: HA recovers resources on other hosts two minutes after their host went down.
func TestFencing(t *testing.T) {
	t.Parallel()
	type row struct {
		disk, lock string
		ha         *world.HAResource
		rule       map[string]string
		back       time.Duration // time until the host returns; 0: never
		quorum     bool
		host       string
		running    bool
		state      string
		lockAfter  string
	}
	tests := map[string]row{
		"on a shared storage":       {disk: "rbd:1", ha: &world.HAResource{}, quorum: true, host: "pve1", running: true, state: "started"},
		"preferred elsewhere":       {disk: "rbd:1", ha: &world.HAResource{}, rule: map[string]string{"nodes": "pve1,pve3:2"}, quorum: true, host: "pve3", running: true, state: "started"},
		"allowed nowhere else":      {disk: "rbd:1", ha: &world.HAResource{}, rule: map[string]string{"nodes": "pve2", "strict": "1"}, quorum: true, host: "pve2", state: "recovery"},
		"on a local storage":        {disk: "fast:1", ha: &world.HAResource{}, quorum: true, host: "pve1", state: "error"},
		"meant to be stopped":       {disk: "rbd:1", ha: &world.HAResource{State: "stopped"}, quorum: true, host: "pve1", state: "stopped"},
		"disabled":                  {disk: "rbd:1", ha: &world.HAResource{State: "disabled"}, quorum: true, host: "pve2", state: "stopped"},
		"ignored":                   {disk: "rbd:1", ha: &world.HAResource{State: "ignored"}, quorum: true, host: "pve2"},
		"not under HA":              {disk: "rbd:1", quorum: true, host: "pve2"},
		"back in time":              {disk: "rbd:1", ha: &world.HAResource{}, quorum: true, back: time.Minute, host: "pve2", running: true, state: "started"},
		"without quorum":            {disk: "rbd:1", ha: &world.HAResource{}, host: "pve2", state: "started"},
		"with the lock of a backup": {disk: "rbd:1", lock: "backup", ha: &world.HAResource{}, quorum: true, host: "pve1", running: true, state: "started"},
		"with the lock of a create": {disk: "rbd:1", lock: "create", ha: &world.HAResource{}, quorum: true, host: "pve1", state: "error", lockAfter: "create"},
	}
	inEachLab(t, tests, func(t *testing.T, l *lab, test row) {
		l.cluster(t)
		must(t, l.world.DefineVM("pve2", 9021, map[string]string{"scsi0": test.disk}, nil))
		if test.ha != nil {
			test.ha.SID = "vm:9021"
			l.world.AddHA(*test.ha)
		}
		if test.rule != nil {
			l.world.AddHARule(world.HARule{ID: "r", Type: "node-affinity", Resources: []string{"vm:9021"}, Options: test.rule})
		}
		time.Sleep(30 * time.Second)
		l.world.SetLock(9021, test.lock)
		l.world.CrashHost("pve2")
		l.world.SetQuorum(test.quorum)
		if test.back > 0 {
			time.Sleep(test.back)
			l.world.BootHost("pve2")
		}
		time.Sleep(90 * time.Second)
		if vm := l.vm(9021); vm.Host != "pve2" {
			t.Errorf("after a minute and a half it is on %s", vm.Host)
		}
		time.Sleep(3 * time.Minute)
		vm := l.vm(9021)
		got := []any{vm.Host, vm.Running, vm.HA.State, vm.Config["lock"]}
		if diff := cmp.Diff([]any{test.host, test.running, test.state, test.lockAfter}, got); diff != "" {
			t.Error(diff)
		}
	})
}

// TestRequestUnderACrash: requests in progress on a crashed host have no effect and get no answer.
func TestRequestUnderACrash(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		l.cluster(t)
		must(t, l.world.DefineVM("pve2", 9021, map[string]string{"scsi0": "fast:1"}, nil))
		must(t, l.world.PowerOn(9021))
		time.AfterFunc(500*time.Millisecond, func() { l.world.CrashHost("pve2") })
		got := l.do("PUT", "/nodes/pve2/qemu/9021/config", "scsi1=fast:1,serial=x")
		if diff := cmp.Diff(reply{Status: "596 Connection timed out"}, got); diff != "" {
			t.Error(diff)
		}
		l.world.BootHost("pve2")
		time.Sleep(time.Minute)
		if got := l.config(9021)["scsi1"]; got != nil {
			t.Errorf("scsi1: %v", got)
		}
	})
}
