package pveapi_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/world"
)

func TestHostDown(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		must.Do(t, l.world.DefineVM("pve2", 9021, map[string]string{"onboot": "1"}, nil))
		must.Do(t, l.world.DefineVM("pve2", 9022, nil, nil))
		must.Do(t, l.world.PowerOn(9021))
		must.Do(t, l.world.PowerOn(9022))
		upid := l.do("POST", "/nodes/pve2/qemu/9022/status/shutdown").Data.(string)
		time.Sleep(2 * time.Second)
		l.world.CrashHost("pve2")
		began := time.Now()
		for _, path := range []string{"/nodes/pve2/status", "/nodes/pve2/qemu/9021/config", "/nodes/pve2/tasks/" + upid + "/status"} {
			same(t, reply{Status: "595 No route to host"}, l.do("GET", path))
		}
		same(t, 9*time.Second, time.Since(began))
		state := func() map[any]any {
			out := map[any]any{}
			for _, row := range l.do("GET", "/cluster/resources").Data.([]any) {
				r := row.(map[string]any)
				out[r["id"]] = r["status"]
			}
			return out
		}
		want := map[any]any{
			"qemu/9011": "stopped", "qemu/9021": "unknown", "qemu/9022": "unknown", "node/pve1": "online", "node/pve2": "offline",
			"storage/pve1/fast": "available", "storage/pve1/isos": "available", "storage/pve1/thin": "available",
			"storage/pve2/fast": "unknown", "storage/pve2/isos": "unknown", "storage/pve2/thin": "unknown",
		}
		same(t, want, state())
		same(t, 0.0, l.do("GET", "/cluster/status").Data.([]any)[2].(map[string]any)["online"])
		l.world.BootHost("pve2")
		time.Sleep(time.Minute)
		same(t, "unexpected status", l.do("GET", "/nodes/pve2/tasks/"+upid+"/status").Data.(map[string]any)["exitstatus"])
		now := state()
		same(t, []any{"running", "stopped", "online"}, []any{now["qemu/9021"], now["qemu/9022"], now["node/pve2"]})
	})
}

// TestCreateEndsWithItsHost: a crash leaves no cleanup to do after the worker.
func TestCreateEndsWithItsHost(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		upid := l.do("POST", "/nodes/pve2/qemu", "vmid=9021", "scsi0=fast:1").Data.(string)
		synctest.Wait()
		l.world.RebootHost("pve2", time.Minute)
		same(t, "unexpected status", l.ended(upid))
		same(t, map[string]any{"lock": "create"}, l.config(9021))
	})
}

func TestHostOfTheAPIIsDown(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.world.CrashHost("pve1")
		if res, err := l.client.Get(base + "/version"); err == nil {
			_ = res.Body.Close()
			t.Errorf("an answer: %s", res.Status)
		}
		l.world.BootHost("pve1")
		same(t, "200 OK", l.do("GET", "/version").Status)
	})
}

// TestLocalStorages: each host has its own volumes under the same volids.
func TestLocalStorages(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.world.AddStorage(world.Storage{ID: "rbd", Type: "rbd", Shared: true, Content: []string{"images"}})
		l.world.AddStorage(world.Storage{ID: "only2", Type: "zfspool", Content: []string{"images"}, Hosts: []string{"pve2"}})
		must.Do(t, l.world.DefineVM("pve2", 9021, map[string]string{"scsi0": "fast:1", "scsi1": "rbd:1", "scsi2": "only2:1"}, nil))
		count := func(host, storage string) any {
			r := l.do("GET", "/nodes/"+host+"/storage/"+storage+"/content", "vmid=9021")
			list, ok := r.Data.([]any)
			if !ok {
				return r.Status
			}
			return len(list)
		}
		want := []any{0, 1, 1, 1, "500 storage 'only2' is not available on node 'pve1'", 1}
		got := []any{count("pve1", "fast"), count("pve2", "fast"), count("pve1", "rbd"), count("pve2", "rbd"), count("pve1", "only2"), count("pve2", "only2")}
		same(t, want, got)
	})
}

// TestStoragesForOtherHosts: they are listed, unless the list is filtered by content.
func TestStoragesForOtherHosts(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.world.AddStorage(world.Storage{ID: "only2", Type: "zfspool", Content: []string{"images"}, Hosts: []string{"pve2"}})
		want := []any{map[string]any{
			"storage": "only2", "type": "zfspool", "content": "images", "shared": 0.0, "active": 0.0, "enabled": 0.0,
			"total": 0.0, "used": 0.0, "avail": 0.0,
		}}
		same(t, want, l.do("GET", "/nodes/pve1/storage", "storage=only2").Data)
		same(t, "400 Parameter verification failed.", l.do("GET", "/nodes/pve1/storage", "storage=only2", "content=images").Status)
	})
}

// cluster adds a third host, so that the loss of one keeps the quorum.
func (l *lab) cluster(t *testing.T) {
	t.Helper()
	l.world.AddHost("pve3")
	l.world.AddStorage(world.Storage{ID: "rbd", Type: "rbd", Shared: true, Content: []string{"images"}})
}

// TestQuorumByVotes: each host has one vote, and a majority is needed.
func TestQuorumByVotes(t *testing.T) {
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
		same(t, []any{test.want, test.want}, []any{status["quorate"] == 1.0, l.world.Quorate()})
		wantCreate := "200 OK"
		if !test.want {
			wantCreate = "500 cluster not ready - no quorum?"
		}
		same(t, wantCreate, l.do("POST", "/nodes/pve1/qemu", "vmid=9012").Status)
		for _, host := range test.down {
			l.world.BootHost(host)
		}
		must.Equal(t, "no quorum with all hosts", false, !l.world.Quorate())
	})
}

// TestBootOrder: VMs with an order first, then by number, with startup delays, and only with quorum.
func TestBootOrder(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		for id, startup := range map[int]string{9021: "", 9022: "order=2", 9023: "1,up=20", 9024: "order=2,up=0", 9025: "up=30"} {
			config := map[string]string{"onboot": "1"}
			if startup != "" {
				config["startup"] = startup
			}
			must.Do(t, l.world.DefineVM("pve2", id, config, nil))
		}
		must.Do(t, l.world.DefineVM("pve2", 9026, map[string]string{"onboot": "0"}, nil))
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
		same(t, want, started)
	})
}

// TestFencing: HA recovers resources on other hosts two minutes after their host went down.
func TestFencing(t *testing.T) {
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
		must.Do(t, l.world.DefineVM("pve2", 9021, map[string]string{"scsi0": test.disk}, nil))
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
		same(t, "pve2", l.vm(9021).Host)
		time.Sleep(3 * time.Minute)
		vm := l.vm(9021)
		got := []any{vm.Host, vm.Running, vm.HA.State, vm.Config["lock"]}
		same(t, []any{test.host, test.running, test.state, test.lockAfter}, got)
	})
}

// TestRequestUnderACrash: requests in progress on a crashed host have no effect and get no answer.
func TestRequestUnderACrash(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.cluster(t)
		must.Do(t, l.world.DefineVM("pve2", 9021, map[string]string{"scsi0": "fast:1"}, nil))
		must.Do(t, l.world.PowerOn(9021))
		time.AfterFunc(500*time.Millisecond, func() { l.world.CrashHost("pve2") })
		got := l.do("PUT", "/nodes/pve2/qemu/9021/config", "scsi1=fast:1,serial=x")
		same(t, reply{Status: "596 Connection timed out"}, got)
		l.world.BootHost("pve2")
		time.Sleep(time.Minute)
		same(t, nil, l.config(9021)["scsi1"])
	})
}

// ha is the state and the HA part of a VM's status.
func (l *lab) ha() []any {
	l.t.Helper()
	s := l.do("GET", vm+"/status/current").Data.(map[string]any)
	return []any{s["status"], s["ha"]}
}

func managed(status, state string) []any {
	return []any{status, map[string]any{"managed": 1.0, "state": state}}
}

const resources = "/cluster/ha/resources"

func TestHARemovedLeavesTheVMAndItsRules(t *testing.T) {
	rule := world.HARule{ID: "together", Type: "resource-affinity", Resources: []string{"vm:9011", "vm:9090"}, Options: map[string]string{"affinity": "positive"}}
	alone := world.HARule{ID: "here", Type: "node-affinity", Resources: []string{"vm:9011"}, Options: map[string]string{"nodes": "pve1", "strict": "1"}}
	left := func(resources string) any {
		return map[string]any{"rule": "together", "type": "resource-affinity", "resources": resources, "affinity": "positive", "order": 1.0}
	}
	here := map[string]any{"rule": "here", "type": "node-affinity", "resources": "vm:9011", "nodes": "pve1", "strict": 1.0, "order": 2.0}
	type row struct {
		form []string
		want []any
	}
	tests := map[string]row{
		"purge=0":     {form: []string{"purge=0"}, want: []any{left("vm:9011,vm:9090"), here}},
		"the default": {want: []any{left("vm:9090")}},
	}
	inEachLab(t, tests, func(t *testing.T, l *lab, test row) {
		must.Do(t, l.world.PowerOn(9011))
		l.world.AddHA(world.HAResource{SID: "vm:9011", State: "started"})
		l.world.AddHARule(rule)
		l.world.AddHARule(alone)
		same(t, "200 OK", l.root("DELETE", resources+"/vm:9011", test.form...).Status)
		same(t, test.want, l.do("GET", "/cluster/ha/rules").Data)
		must.Equal(t, "before the manager's round", []string{"vm:9011 deleting"}, l.services())
		time.Sleep(time.Minute)
		same(t, []any{"running", map[string]any{"managed": 0.0}}, l.ha())
		same(t, []string(nil), l.services())
	})
}

// services lists the resources in HA's status.
func (l *lab) services() []string {
	l.t.Helper()
	var list []string
	for _, row := range l.do("GET", "/cluster/ha/status/current").Data.([]any) {
		if s := row.(map[string]any); s["type"] == "service" {
			list = append(list, s["sid"].(string)+" "+s["state"].(string))
		}
	}
	return list
}

// TestHAStartsOnceMoreAfterRemoval: until its next round the manager still manages the VM.
func TestHAStartsOnceMoreAfterRemoval(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		must.Do(t, l.world.PowerOn(9011))
		l.world.AddHA(world.HAResource{SID: "vm:9011", State: "started"})
		l.root("DELETE", resources+"/vm:9011", "purge=0")
		taskOK(t, l.task("POST", vm+"/status/stop"))
		time.Sleep(20 * time.Second)
		same(t, "running", l.ha()[0])
		taskOK(t, l.task("POST", vm+"/status/stop"))
		time.Sleep(time.Minute)
		same(t, "stopped", l.ha()[0])
	})
}

func TestHAThatCannotStart(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.world.SetLock(9011, "backup")
		l.world.AddHA(world.HAResource{SID: "vm:9011", State: "started"})
		time.Sleep(2 * time.Minute)
		same(t, managed("stopped", "error"), l.ha())
		same(t, "500 service 'vm:9011' in error state, must be disabled and fixed first", l.root("PUT", resources+"/vm:9011", "state=started").Status)
		l.world.SetLock(9011, "")
		for _, state := range []string{"disabled", "started"} {
			same(t, "200 OK", l.root("PUT", resources+"/vm:9011", "state="+state).Status)
			time.Sleep(30 * time.Second)
		}
		same(t, managed("running", "started"), l.ha())
		l.root("PUT", resources+"/vm:9011", "state=ignored")
		time.Sleep(30 * time.Second)
		same(t, []any{"running", map[string]any{"managed": 0.0}}, l.ha())
		taskOK(t, l.task("POST", vm+"/status/stop"))
		same(t, "500 unable to remove VM 9011 - used in HA resources and purge parameter not set.", l.do("DELETE", vm).Status)
	})
}

func TestHARefusals(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.world.AddHA(world.HAResource{SID: "vm:9011", State: "stopped"})
		for name, test := range map[string]struct{ got, want string }{
			"twice":        {l.root("POST", resources, "sid=9011").Status, "500 create resource failed: resource ID 'vm:9011' already defined"},
			"no VM":        {l.root("POST", resources, "sid=vm:700").Status, "500 resource 'vm:700' does not exists in cluster"},
			"no group":     {l.root("PUT", resources+"/vm:9011", "group=g").Status, "500 HA group 'g' does not exist"},
			"not there":    {l.do("GET", resources+"/vm:700").Status, "500 no such resource 'vm:700'"},
			"not managed":  {l.root("DELETE", resources+"/vm:700").Status, "500 cannot delete service 'vm:700', not HA managed!"},
			"wrong digest": {l.root("PUT", resources+"/vm:9011", "comment=x", "digest=00").Status, "500 update resource failed: detected modified configuration - file changed by other user? Try again."},
			"wrong state":  {l.root("PUT", resources+"/vm:9011", "state=on").Status, bad},
		} {
			must.Equal(t, name, test.want, test.got)
		}
		l.world.SetQuorum(false)
		same(t, "500 delete resource failed: cfs-lock 'domain-ha' error: no quorum!", l.root("DELETE", resources+"/vm:9011").Status)
	})
}
