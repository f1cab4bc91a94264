package pveapi_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	proxmox "github.com/luthermonson/go-proxmox"

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

// TestDisarmedHA: while HA is disarmed it releases no VM and takes none.
func TestDisarmedHA(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		armed := func() any {
			for _, row := range l.do("GET", "/cluster/ha/status/current").Data.([]any) {
				if s := row.(map[string]any); s["type"] == "fencing" {
					return s["armed-state"]
				}
			}
			return nil
		}
		l.world.AddHA(world.HAResource{SID: "vm:9011", State: "started"})
		must.Equal(t, "before", "armed", armed())
		l.root("POST", "/cluster/ha/status/disarm-ha", "resource-mode=freeze")
		must.Equal(t, "then", "disarmed", armed())
		l.root("DELETE", resources+"/vm:9011", "purge=0")
		time.Sleep(time.Minute)
		must.Equal(t, "while disarmed", []string{"vm:9011 deleting"}, l.services())
		l.root("POST", "/cluster/ha/status/arm-ha")
		same(t, []string(nil), l.services())
	})
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

func TestStorageConfig(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.world.AddStorage(world.Storage{ID: "san", Type: "iscsi", Shared: true, Content: []string{"images"}, Hosts: []string{"pve1", "pve2"}})
		l.world.AddStorage(world.Storage{ID: "z", Type: "zfspool", Content: []string{"images"}, Sparse: true})
		l.world.AddStorage(world.Storage{ID: "d", Type: "dir", Content: []string{"images"}, Preallocation: "full"})
		l.world.AddStorage(world.Storage{ID: "v", Type: "lvm", Content: []string{"images"}})
		want := []any{
			map[string]any{"storage": "d", "type": "dir", "content": "images", "path": "/mnt/pve/d", "preallocation": "full"},
			map[string]any{"storage": "fast", "type": "dir", "content": "images", "path": "/mnt/pve/fast"},
			map[string]any{"storage": "isos", "type": "cephfs", "content": "iso", "shared": 1.0, "path": "/mnt/pve/isos"},
			map[string]any{"storage": "san", "type": "iscsi", "content": "images", "shared": 1.0, "nodes": "pve1,pve2"},
			map[string]any{"storage": "thin", "type": "lvmthin", "content": "images", "vgname": "pve", "thinpool": "thin"},
			map[string]any{"storage": "v", "type": "lvm", "content": "images", "vgname": "pve"},
			map[string]any{"storage": "z", "type": "zfspool", "content": "images", "sparse": 1.0, "pool": "rpool/data"},
		}
		same(t, want, l.do("GET", "/storage").Data)
		same(t, want[4:5], l.do("GET", "/storage?type=lvmthin").Data)
	})
}

// TestMoveByStorageType: volume_has_feature's answer to "rename", and the names of volumes.
func TestMoveByStorageType(t *testing.T) {
	t.Parallel()
	const refused = "500 Storage does not support moving of this disk to another VM"
	tests := map[string]struct{ want, volid string }{
		"dir":     {want: "OK", volid: "st:9090/vm-9090-disk-0.raw"},
		"nfs":     {want: "OK", volid: "st:9090/vm-9090-disk-0.raw"},
		"btrfs":   {want: "OK", volid: "st:9090/vm-9090-disk-0.raw"},
		"lvm":     {want: "OK", volid: "st:vm-9090-disk-0"},
		"lvmthin": {want: "OK", volid: "st:vm-9090-disk-0"},
		"zfspool": {want: "OK", volid: "st:vm-9090-disk-0"},
		"rbd":     {want: "OK", volid: "st:vm-9090-disk-0"},
		"zfs":     {want: refused, volid: "st:vm-9011-disk-0"}, // ZFS over iSCSI
		"iscsi":   {want: refused, volid: "st:0.0.0.scsi-3600"},
	}
	for kind, test := range tests {
		t.Run(kind, func(t *testing.T) {
			inLab(t, func(t *testing.T, l *lab) {
				l.world.AddStorage(world.Storage{ID: "st", Type: kind, Content: []string{"images"}})
				must.Do(t, l.world.DefineVM("pve1", 9090, nil, nil))
				if kind == "iscsi" {
					must.Do(t, l.world.AddLUN("st", "pve1", "0.0.0.scsi-3600", 1<<30, world.NewMedia(nil)))
					must.Do(t, l.world.SetConfig("", "pve1", world.ChangeRequest{ID: 9011, Set: map[string]string{"scsi5": test.volid}}))
				} else {
					l.putOK(vm+"/config", "scsi5=st:1")
				}
				same(t, test.want, l.outcome(l.do("POST", vm+"/move_disk", "disk=scsi5", "target-vmid=9090")))
				same(t, []string{test.volid}, l.volumes("st"))
			})
		})
	}
}

func TestLUNs(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.world.AddStorage(world.Storage{ID: "san", Type: "iscsi", Content: []string{"images"}})
		must.Do(t, l.world.AddLUN("san", "pve1", "0.0.1.scsi-3601", 1<<30, world.NewMedia(nil)))
		same(t, "500 missing privileges to access san:0.0.1.scsi-3601", l.do("PUT", vm+"/config", "scsi5=san:0.0.1.scsi-3601").Status)
		same(t, "200 OK", l.root("PUT", vm+"/config", "scsi5=san:0.0.1.scsi-3601").Status)
		same(t, "500 can't allocate space in iscsi storage", l.do("PUT", vm+"/config", "scsi6=san:1").Status)
		taskOK(t, l.task("DELETE", vm))
		same(t, []string{"san:0.0.1.scsi-3601"}, l.volumes("san"))
	})
}

// TestContentOfOthers: images of VMs that the user may not see are not listed, nor are ISOs in a VM's listing.
func TestContentOfOthers(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := newLab(t)
		l.world.AddRole("Look", "Datastore.Audit", "VM.Config.Disk")
		l.world.Grant(world.ACL{Path: "/storage", Who: tokenID, Role: "Look", Propagate: true})
		l.world.Grant(world.ACL{Path: "/vms/210", Who: tokenID, Role: "Look"})
		must.Do(t, l.world.DefineVM("pve1", 210, map[string]string{"scsi0": "thin:1"}, nil))
		must.Do(t, l.world.DefineVM("pve1", 211, map[string]string{"scsi0": "thin:1"}, nil))
		want := []any{map[string]any{"volid": "thin:vm-210-disk-0", "content": "images", "format": "raw", "size": 1073741824.0, "ctime": 946684800.0, "vmid": 210.0}}
		same(t, want, l.do("GET", "/nodes/pve1/storage/thin/content").Data)
		iso := []any{map[string]any{"volid": "isos:iso/boot.iso", "content": "iso", "format": "iso", "size": 3.0, "ctime": 946684800.0}}
		same(t, iso, l.do("GET", "/nodes/pve1/storage/isos/content").Data)
		same(t, []any{}, l.do("GET", "/nodes/pve1/storage/isos/content?vmid=210").Data)
	})
}

// Images take their whole size, or what was written, depending on their storage.
func TestRoomByStorage(t *testing.T) {
	const gib = int64(1) << 30
	images := []string{"images"}
	type row struct {
		storage world.Storage
		used    int64  // after allocating 10 GiB
		tooMuch string // error of allocating more than the free space; "": none
	}
	tests := map[string]row{
		"directory":             {world.Storage{Type: "dir"}, 4 << 10, "OK"},
		"directory, falloc":     {world.Storage{Type: "dir", Preallocation: "falloc"}, 10 * gib, "unable to create image: qemu-img: st:9020/vm-9020-disk-1.raw: Could not preallocate data for the new file: No space left on device"},
		"directory, metadata":   {world.Storage{Type: "dir", Preallocation: "metadata"}, 4 << 10, "OK"},
		"LVM":                   {world.Storage{Type: "lvm"}, 10 * gib, "not enough free space (15728640 < 104857600)"},
		"thin pool":             {world.Storage{Type: "lvmthin"}, 4 << 10, "OK"},
		"ZFS":                   {world.Storage{Type: "zfspool"}, 10 * gib, "unable to create image: qemu-img: st:vm-9020-disk-1: Could not preallocate data for the new file: No space left on device"},
		"ZFS that is sparse":    {world.Storage{Type: "zfspool", Sparse: true}, 4 << 10, "OK"},
		"Ceph":                  {world.Storage{Type: "rbd", Shared: true}, 4 << 10, "OK"},
		"a share, all of it":    {world.Storage{Type: "nfs", Shared: true, Preallocation: "full"}, 10 * gib, "unable to create image: qemu-img: st:9020/vm-9020-disk-1.raw: Could not preallocate data for the new file: No space left on device"},
		"a share as by default": {world.Storage{Type: "nfs", Shared: true}, 4 << 10, "OK"},
	}
	inEachLab(t, tests, func(t *testing.T, l *lab, tc row) {
		tc.storage.ID, tc.storage.Content, tc.storage.Capacity = "st", images, 25*gib
		l.world.AddStorage(tc.storage)
		taskOK(t, l.task("POST", "/nodes/pve1/qemu", "vmid=9020", "scsi0=st:10"))
		s := l.do("GET", "/nodes/pve1/storage/st/status").Data.(map[string]any)
		want := []any{float64(tc.used), float64(25 * gib), float64(25*gib - tc.used)}
		same(t, want, []any{s["used"], s["total"], s["avail"]})
		same(t, tc.tooMuch, l.task("POST", "/nodes/pve1/qemu/9020/config", "scsi1=st:100"))
	})
}

const held = "fast:500/vm-500-disk-0.raw"

// hold adds VM 500, which holds a persistent disk that VM 9011 uses.
func (l *lab) hold(t *testing.T) *world.Media {
	t.Helper()
	m := world.NewMedia([]byte("held"))
	must.Do(t, l.world.DefineVM("pve1", 500, map[string]string{"scsi0": "fast:1"}, map[string]*world.Media{"scsi0": m}))
	l.world.Protect(world.Protected{Serial: "held", Media: m, Held: true})
	l.putOK(vm+"/config", "scsi4="+held+",serial=held")
	return m
}

func TestHolderKeepsItsDisk(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		m := l.hold(t)
		same(t, held+",serial=held,size=1G", l.config(9011)["scsi4"])
		l.putOK(vm+"/config", "delete=scsi4")
		c := l.config(9011)
		must.Hold(t, c["scsi4"] == nil && c["unused0"] == nil, "after the detach: %v, %v", c["scsi4"], c["unused0"])
		l.putOK(vm+"/config", "scsi4="+held, "protection=1")
		l.putOK(vm+"/config", "protection=0")
		must.Do(t, l.world.DefineVM("pve1", 9090, nil, nil))
		taskOK(t, l.task("POST", vm+"/move_disk", "disk=scsi1", "target-vmid=9090"))
		taskOK(t, l.task("DELETE", vm))
		same(t, []string(nil), l.world.Violations())
		must.Equal(t, "the holder's disk is gone", false, l.world.Media(held, "pve1") != m)
	})
}

func TestHoldersDiskIsLost(t *testing.T) {
	const gone = "disk held: its volume " + held + " was freed"
	type row struct {
		do   func(*lab) string
		want []string // expected violations
	}
	inEachLab(t, map[string]row{
		"with its holder": {
			do: func(l *lab) string { return l.task("DELETE", "/nodes/pve1/qemu/500") },
			want: []string{
				gone, "disk held: is in 0 volumes []", "disk held: no VM's configuration names its volume",
				"disk held: is not " + held + " any more, as its holder called it",
			},
		},
		"by a move": { // it ignores the volume's owner
			do: func(l *lab) string {
				must.Do(l.t, l.world.DefineVM("pve1", 9090, nil, nil))
				return l.task("POST", vm+"/move_disk", "disk=scsi4", "target-vmid=9090")
			},
			want: []string{
				"disk held: its holder's volume " + held + " was renamed",
				"disk held: is not " + held + " any more, as its holder called it",
			},
		},
		"by two VMs": {
			do: func(l *lab) string {
				must.Do(l.t, l.world.PowerOn(9011))
				must.Equal(l.t, "both run with one file", false, l.world.PowerOn(500) == nil)
				return "OK"
			},
		},
		"by plugging it in twice": {
			do: func(l *lab) string {
				must.Do(l.t, l.world.DefineVM("pve1", 9090, nil, nil))
				must.Do(l.t, l.world.PowerOn(9011))
				must.Do(l.t, l.world.PowerOn(9090))
				l.putOK("/nodes/pve1/qemu/9090/config", "scsi7="+held)
				l.putOK("/nodes/pve1/qemu/9090/config", "delete=scsi7")
				return "OK"
			},
			want: []string{"disk held: is in the running VMs [9011 9090]"},
		},
	}, func(t *testing.T, l *lab, test row) {
		l.hold(t)
		taskOK(t, test.do(l))
		same(t, test.want, l.world.Violations())
	})
}

// waits waits for a task of go-proxmox, which must succeed.
func waits(t *testing.T) func(task *proxmox.Task, err error) {
	return func(task *proxmox.Task, err error) {
		t.Helper()
		must.Do(t, err)
		must.Do(t, task.Wait(t.Context(), time.Second, time.Minute))
		must.Be(t, task.IsSuccessful, "task %s: %s", task.UPID, task.ExitStatus)
	}
}

// TestGoProxmox takes a VM through its life with the go-proxmox client library.
func TestGoProxmox(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		ctx := t.Context()
		client := proxmox.NewClient(base, proxmox.WithHTTPClient(l.client), proxmox.WithAPIToken(tokenID, secret))
		version := must.Get(client.Version(ctx))(t)
		same(t, "9.2", version.Release)
		nodes := must.Get(client.Nodes(ctx))(t)
		same(t, 2, len(nodes))
		cluster := must.Get(client.Cluster(ctx))(t)
		same(t, 1, cluster.Quorate)
		node := must.Get(client.Node(ctx, "pve1"))(t)
		wait := waits(t)
		wait(node.NewVirtualMachine(ctx, 9012,
			proxmox.VirtualMachineOption{Name: "name", Value: "wk2"},
			proxmox.VirtualMachineOption{Name: "cores", Value: 4},
			proxmox.VirtualMachineOption{Name: "scsi0", Value: "thin:8,serial=s"}))
		vm := must.Get(node.VirtualMachine(ctx, 9012))(t)
		same(t, []any{"wk2", 4, "thin:vm-9012-disk-0,serial=s,size=8G"}, []any{vm.Name, vm.CPUs, vm.VirtualMachineConfig.SCSIs["scsi0"]})
		wait(vm.Start(ctx))
		must.Do(t, vm.Ping(ctx))
		same(t, []any{"running", "running"}, []any{vm.Status, vm.QMPStatus})
		wait(vm.Stop(ctx))
		wait(vm.ResizeDisk(ctx, "scsi0", "+2G"))
		wait(vm.Config(ctx, proxmox.VirtualMachineOption{Name: "onboot", Value: true}))
		storage := must.Get(node.Storage(ctx, "thin"))(t)
		content := must.Get(storage.GetContent(ctx))(t)
		must.Hold(t, len(content) == 1 && content[0].Size == 10<<30 && content[0].VMID == 9012, "content %+v", content)
		wait(vm.Delete(ctx, nil))
		must.Equal(t, "the disk is still there", false, l.world.Media("thin:vm-9012-disk-0", "pve1") != nil)
	})
}

// TestGoProxmoxWithPassword: go-proxmox logs in, changes a VM and uploads.
func TestGoProxmoxWithPassword(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		ctx := t.Context()
		l.world.SetPassword("recast@pve", "correct-horse")
		client := proxmox.NewClient(base, proxmox.WithHTTPClient(l.client), proxmox.WithCredentials(&proxmox.Credentials{Username: "recast@pve", Password: "correct-horse"}))
		node := must.Get(client.Node(ctx, "pve1"))(t)
		wait := waits(t)
		vm := must.Get(node.VirtualMachine(ctx, 9011))(t)
		wait(vm.Config(ctx, proxmox.VirtualMachineOption{Name: "onboot", Value: true}))
		storage := must.Get(node.Storage(ctx, "isos"))(t)
		name := filepath.Join(t.TempDir(), "theirs.iso")
		must.Do(t, os.WriteFile(name, []byte("their bytes"), 0o600))
		wait(storage.Upload("iso", name))
		m := l.world.Media("isos:iso/theirs.iso", "pve1")
		must.Hold(t, m != nil && string(m.Bytes()) == "their bytes", "stored %v", m)
		refused := proxmox.NewClient(base, proxmox.WithHTTPClient(l.client), proxmox.WithCredentials(&proxmox.Credentials{Username: "recast@pve", Password: "wrong"}))
		if _, err := refused.Version(ctx); !errors.Is(err, proxmox.ErrNotAuthorized) {
			t.Errorf("a wrong password: %v", err)
		}
	})
}
