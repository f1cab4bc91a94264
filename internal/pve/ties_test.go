package pve

import (
	"cmp"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

const (
	onVM101 = "GET /nodes/pve1/qemu/101"
	haList  = "GET /cluster/ha/resources?type=vm"
)

// tied101 is VM 101 in the cases below.
var tied101 = cluster.VM{ID: 101, Name: "wk1", Host: "pve1", Pool: "talos"}

// untied makes pve1 answer about a VM 101 without ties, among others' objects.
func untied(pve1 *fake) {
	for path, list := range map[string]string{
		onVM101 + "/firewall/rules":                     `[]`,
		onVM101 + "/firewall/options":                   `{"digest":"da39"}`,
		onVM101 + "/firewall/aliases":                   `[]`,
		onVM101 + "/firewall/ipset":                     `[]`,
		onVM101 + "/snapshot":                           `[{"name":"current","description":"You are here!"}]`,
		"GET /access/acl":                               `[{"path":"/","ugid":"a@pve"},{"path":"/vms/1010","ugid":"a@pve"}]`,
		"GET /cluster/replication":                      `[{"id":"102-0","guest":102}]`,
		"GET /cluster/backup":                           `[]`,
		listPath:                                        `[{"type":"qemu","vmid":101,"node":"pve1","pool":"talos"},{"type":"qemu","vmid":102,"node":"pve1","pool":"other"}]`,
		"GET /nodes/pve1/tasks?source=active&limit=500": `[]`,
		"GET /nodes/pve1/time":                          `{"time":946684800}`,
		haList:                                          `[{"sid":"vm:102","type":"vm","new":{"a":1}}]`,
		haStatus:                                        `[{"id":"fencing","type":"fencing","armed-state":"armed","status":"armed (CRM watchdog active)"}]`,
	} {
		pve1.On(path, data(list))
	}
}

// tie is one thing tied to VM 101: an answer that differs from untied's.
type tie struct {
	vm      func(*cluster.VM)
	path    string
	answer  route
	path2   string
	answer2 route
	want    cluster.Ties
	err     string
}

func testTies(t *testing.T, cases map[string]tie) {
	t.Helper()
	onEachNode(t, cases, func(t *testing.T, pve1 *fake, c *Client, tc tie) {
		untied(pve1)
		for path, answer := range map[string]route{tc.path: tc.answer, tc.path2: tc.answer2} {
			if path != "" {
				pve1.On(path, answer)
			}
		}
		vm := tied101
		if tc.vm != nil {
			tc.vm(&vm)
		}
		got, err := c.Ties(t.Context(), vm)
		must.Equal(t, "error", cmp.Or(tc.err, "<nil>"), fmt.Sprint(err))
		must.Equal(t, "ties", tc.want, got)
	})
}

func TestTies(t *testing.T) {
	testTies(t, map[string]tie{
		"none": {},
		"ACL entries": {
			path: "GET /access/acl", answer: data(`[{"path":"/vms/101","ugid":"a@pve","type":"user","roleid":"R","propagate":1},{"path":"/vms/101","ugid":"b","type":"group","roleid":"S","propagate":"0"}]`),
			want: cluster.Ties{ACL: []cluster.ACLEntry{
				{Path: "/vms/101", Kind: "user", Who: "a@pve", Role: "R", Propagate: true}, {Path: "/vms/101", Kind: "group", Who: "b", Role: "S"},
			}},
		},
		"snapshots": {
			path: onVM101 + "/snapshot", answer: data(`[{"name":"before"},{"name":"after","parent":"before"},{"name":"current","parent":"after"}]`),
			want: cluster.Ties{Snapshots: []string{"before", "after"}},
		},
		"HA": {
			path: haList,
			answer: data(`[{"sid":"vm:101","type":"vm","digest":"d","state":"stopped","max_restart":3,"max_relocate":"0","group":"rack1",
				"comment":"two words","failback":0}]`),
			want: cluster.Ties{HA: &cluster.HAResource{VMID: 101, State: "stopped", Settings: map[string]string{
				"max_restart": "3", "max_relocate": "0", "group": "rack1", "comment": "two words", "failback": "0",
			}}},
		},
		"HA without a state": {
			path: haList, answer: data(`[{"sid":"vm:101","type":"vm","digest":"d"}]`),
			want: cluster.Ties{HA: &cluster.HAResource{VMID: 101, State: "started", Settings: map[string]string{}}},
		},
		"HA that is disarmed": {
			path: haList, answer: data(`[{"sid":"vm:101","type":"vm"}]`),
			path2: haStatus, answer2: data(`[{"id":"fencing","type":"fencing","armed-state":"disarming","status":"disarming, resource mode: freeze (CRM watchdog active)"}]`),
			want: cluster.Ties{HA: &cluster.HAResource{VMID: 101, State: "started", Settings: map[string]string{}}, Busy: []string{
				"Proxmox HA is disarming, resource mode: freeze (CRM watchdog active), and neither releases a VM nor takes one until ha-manager crm-command arm-ha",
			}},
		},
		"HA with a group that is gone": {
			path: haList, answer: data(`[{"sid":"vm:101","type":"vm","digest":"d","group":"rack9","errors":{"group":"group 'rack9' does not exist"}}]`),
			want: cluster.Ties{HA: &cluster.HAResource{VMID: 101, State: "started", Settings: map[string]string{"group": "rack9"}}},
		},
		"HA setting of an unknown kind": {
			path: haList, answer: data(`[{"sid":"vm:101","new":{"a":1}}]`),
			err: `read what belongs to VM 101 "wk1" on pve1: HA resource vm:101: new is neither a text nor a number: {"a":1}`,
		},
	})
}

func TestTiesOfAFirewall(t *testing.T) {
	walled := func(f cluster.FirewallConfig, dropped ...string) cluster.Ties {
		return cluster.Ties{Firewall: f, Dropped: dropped}
	}
	testTies(t, map[string]tie{
		"firewall rules":   {path: onVM101 + "/firewall/rules", answer: data(`[{"pos":0,"type":"in","action":"DROP","enable":1,"ipversion":4,"digest":"d"}]`), want: walled(cluster.FirewallConfig{Rules: []cluster.FirewallEntry{{"type": "in", "action": "DROP", "enable": "1"}}})},
		"firewall options": {path: onVM101 + "/firewall/options", answer: data(`{"digest":"d","enable":1}`), want: walled(cluster.FirewallConfig{Options: cluster.FirewallEntry{"enable": "1"}})},
		"firewall aliases": {path: onVM101 + "/firewall/aliases", answer: data(`[{"name":"a"}]`), want: walled(cluster.FirewallConfig{Aliases: []cluster.FirewallEntry{{"name": "a"}}})},
		"firewall IP sets": {
			path: onVM101 + "/firewall/ipset", answer: data(`[{"name":"ipfilter-net0","digest":"d"}]`), path2: onVM101 + "/firewall/ipset/ipfilter-net0", answer2: data(`[{"cidr":"192.0.2.1","nomatch":1}]`),
			want: walled(cluster.FirewallConfig{Sets: []cluster.FirewallSet{{Name: "ipfilter-net0", Members: []cluster.FirewallEntry{{"cidr": "192.0.2.1", "nomatch": "1"}}}}}),
		},
		"a firewall option of an editor's": {
			path: onVM101 + "/firewall/options", answer: data(`{"digest":"d","ips":1}`),
			want: walled(cluster.FirewallConfig{Options: cluster.FirewallEntry{"ips": "1"}}, "a firewall that Proxmox would not take again (option ips, which only an editor writes)"),
		},
		"a rule that is wrong": {
			path: onVM101 + "/firewall/rules", answer: data(`[{"pos":0,"type":"in","errors":{"source":"no such alias 'a'"}}]`),
			want: walled(cluster.FirewallConfig{Rules: []cluster.FirewallEntry{{"type": "in"}}}, `a firewall that Proxmox would not take again (rule 0: {"source":"no such alias 'a'"})`),
		},
	})
}

// TestTiesOfSettings: what a setting of the VM requires to exist.
func TestTiesOfSettings(t *testing.T) {
	with := func(key, value string) func(*cluster.VM) {
		return func(vm *cluster.VM) { vm.Config = map[string]string{key: value} }
	}
	testTies(t, map[string]tie{
		"arch": {
			vm: with("arch", "x86_64"), path: "GET /nodes/pve1/status", answer: data(`{"current-kernel":{"machine":"x86_64"}}`),
			want: cluster.Ties{HostArch: "x86_64"},
		},
		"arch of a host that does not tell": {vm: with("arch", "x86_64"), path: "GET /nodes/pve1/status", answer: data(`{"kversion":"Linux 5.15"}`)},
		"arch of a host that is not ours":   {vm: with("arch", "x86_64"), path: "GET /nodes/pve1/status", answer: raw("403 Permission check failed (/nodes/pve1, Sys.Audit)", "")},
		"arch of a host that fails": {
			vm: with("arch", "x86_64"), path: "GET /nodes/pve1/status", answer: raw("500 no", ""),
			err: `read what belongs to VM 101 "wk1" on pve1: GET /nodes/pve1/status: 500 no`,
		},
		"networks": {
			vm: func(vm *cluster.VM) {
				vm.Config = map[string]string{"net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0", "net1": "virtio=BC:24:11:00:00:02,bridge=tenant1", "net2": "virtio=BC:24:11:00:00:03,bridge=plain", "net3": "virtio=BC:24:11:00:00:04,bridge=other"}
			},
			path:   "GET /nodes/pve1/network?type=any_bridge",
			answer: data(`[{"iface":"vmbr0","type":"bridge"},{"iface":"plain","type":"OVSBridge"},{"iface":"tenant1","type":"vnet","ipam":1}]`),
			want:   cluster.Ties{VNets: []cluster.VNet{{Name: "tenant1", IPAM: true}, {Name: "plain"}, {Name: "other", Hidden: true}}},
		},
		"snippets": {
			vm: with("cicustom", "meta=local:snippets/m.yaml,user=local:snippets/u.yaml"), path: "GET /nodes/pve1/storage/local/content",
			answer: data(`[{"volid":"local:snippets/m.yaml"}]`), want: cluster.Ties{Snippets: []string{"local:snippets/m.yaml"}},
		},
		"snippets that are not ours to see": {
			vm: with("cicustom", "meta=local:snippets/m.yaml"), path: "GET /nodes/pve1/storage/local/content", answer: raw("403 Permission check failed (/storage/local, Datastore.Audit)", ""),
		},
	})
}

func TestTiesFailClosed(t *testing.T) {
	const read = `read what belongs to VM 101 "wk1" on pve1: `
	cases := map[string]tie{
		"privileges are missing": {
			path: haList, answer: raw("403 Permission check failed (/, Sys.Audit)", ""),
			path2: onVM101 + "/snapshot", answer2: raw("403 Permission check failed (/vms/101, VM.Audit)", ""),
			err: read + "GET /nodes/pve1/qemu/101/snapshot: 403 Permission check failed (/vms/101, VM.Audit)\n" +
				"GET /cluster/ha/resources: 403 Permission check failed (/, Sys.Audit)",
		},
		"VM is gone": {
			path: onVM101 + "/firewall/rules", answer: raw(noVM101, ""),
			err: read + "GET /nodes/pve1/qemu/101/firewall/rules: " + noVM101,
		},
		"HA is broken": {
			path: haList, answer: raw("500 unable to read file 'ha/resources.cfg'", ""),
			err: read + "GET /cluster/ha/resources: 500 unable to read file 'ha/resources.cfg'",
		},
		"task that cannot be read": {
			path: "GET /nodes/pve1/tasks?source=active&limit=500", answer: data(`[{"upid":"nonsense"}]`),
			err: read + `"nonsense" is not the name of a Proxmox task`,
		},
	}
	for _, path := range []string{
		onVM101 + "/firewall/rules", onVM101 + "/firewall/options", onVM101 + "/firewall/aliases", onVM101 + "/firewall/ipset",
		onVM101 + "/snapshot", "GET /access/acl", "GET /cluster/replication", "GET /cluster/backup",
	} {
		cases["403 "+path] = tie{path: path, answer: raw("403 Permission check failed", ""), err: read + path + ": 403 Permission check failed"}
	}
	testTies(t, cases)
}

// at is a Unix time that far ahead of the start of a test's bubble.
func at(ahead time.Duration) int64 {
	return time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(ahead).Unix()
}

func TestBackups(t *testing.T) {
	job := func(fields string) route {
		return data(fmt.Sprintf(`[{"id":"nightly","type":"vzdump","schedule":"22:00","next-run":%d,%s}]`, at(10*time.Minute), fields))
	}
	task := func(kind, id, rest string) route {
		return data(`[{"upid":"UPID:pve1:0000ABCD:00012345:386D4380:` + kind + `:` + id + `:root@pam:"` + rest + `}]`)
	}
	const jobs, tasks = "GET /cluster/backup", "GET /nodes/pve1/tasks?source=active&limit=500"
	busy := func(what ...string) cluster.Ties { return cluster.Ties{Busy: what} }
	soon := busy("backup job nightly due at 2000-01-01 00:10 UTC")
	testTies(t, map[string]tie{
		"lock":                   {vm: func(vm *cluster.VM) { vm.Lock = "backup" }, want: busy("locked by a backup")},
		"another lock":           {vm: func(vm *cluster.VM) { vm.Lock = "migrate" }},
		"task of the VM":         {path: tasks, answer: task("vzdump", "101", ""), want: busy("running task vzdump 101 on pve1")},
		"task of another VM":     {path: tasks, answer: task("vzdump", "102", "")},
		"task of several VMs":    {path: tasks, answer: task("vzdump", "", ""), want: busy("running task vzdump on pve1 of several VMs")},
		"task that has ended":    {path: tasks, answer: task("vzdump", "101", `,"endtime":946684800,"status":"OK"`)},
		"another kind of task":   {path: tasks, answer: task("qmstart", "101", "")},
		"job with the VM":        {path: jobs, answer: job(`"vmid":"100, 101;102","enabled":1`), want: soon},
		"job with others":        {path: jobs, answer: job(`"vmid":"1010,11","enabled":1`)},
		"job of all":             {path: jobs, answer: job(`"all":1`), want: soon},
		"job of all others":      {path: jobs, answer: job(`"all":1,"exclude":"101"`)},
		"job with exceptions":    {path: jobs, answer: job(`"exclude":"102"`), want: soon},
		"job that is disabled":   {path: jobs, answer: job(`"all":1,"enabled":0`)},
		"job of the pool":        {path: jobs, answer: job(`"pool":"talos","all":0`), want: soon},
		"job of another pool":    {path: jobs, answer: job(`"pool":"other","all":1`)},
		"pool before list":       {path: jobs, answer: job(`"pool":"other","vmid":"101"`)},
		"list before all":        {path: jobs, answer: job(`"vmid":"102","all":1`)},
		"job on this host":       {path: jobs, answer: job(`"all":1,"node":"pve1"`), want: soon},
		"job on another host":    {path: jobs, answer: job(`"all":1,"node":"pve2"`)},
		"job of no VM":           {path: jobs, answer: job(`"enabled":1`)},
		"job that is not due":    {path: jobs, answer: data(fmt.Sprintf(`[{"id":"nightly","all":1,"next-run":%d}]`, at(cluster.BusyWithin+time.Second)))},
		"job that is just due":   {path: jobs, answer: data(fmt.Sprintf(`[{"id":"nightly","all":1,"next-run":"%d"}]`, at(cluster.BusyWithin))), want: busy("backup job nightly due at 2000-01-01 00:30 UTC")},
		"job with no next run":   {path: jobs, answer: data(`[{"id":"old","all":1,"starttime":"22:00"}]`), want: busy("backup job old due at a time that Proxmox does not report")},
		"job whose time is null": {path: jobs, answer: data(`[{"id":"old","all":1,"next-run":null}]`), want: busy("backup job old due at a time that Proxmox does not report")},
	})
}

func TestReplications(t *testing.T) {
	const list, status = "GET /cluster/replication", "GET /nodes/pve1/replication"
	mine := data(`[{"id":"101-0","guest":"101","target":"pve2","schedule":"*/5","rate":10,"disable":0},{"id":"102-0","guest":102}]`)
	with := func(busy ...string) cluster.Ties {
		return cluster.Ties{Jobs: []cluster.ReplicationJob{{ID: "101-0", Target: "pve2", Schedule: "*/5", Rate: "10"}}, Busy: busy}
	}
	state := func(fields string) route { return data(`[{"id":"101-0","guest":101,` + fields + `}]`) }
	next := func(ahead time.Duration, rest string) route {
		return state(fmt.Sprintf(`"next_sync":%d%s`, at(ahead), rest))
	}
	testTies(t, map[string]tie{
		"runs":              {path: list, answer: mine, path2: status, answer2: next(24*time.Hour, `,"pid":1234`), want: with("replication job 101-0 runs")},
		"is due":            {path: list, answer: mine, path2: status, answer2: next(15*time.Minute, ``), want: with()},
		"is overdue":        {path: list, answer: mine, path2: status, answer2: state(`"next_sync":1`), want: with()},
		"is not due":        {path: list, answer: mine, path2: status, answer2: next(24*time.Hour, ``), want: with()},
		"is disabled":       {path: list, answer: mine, path2: status, answer2: next(0, `,"disable":1`), want: with()},
		"target is offline": {path: list, answer: mine, path2: status, answer2: state(`"next_sync":0,"fail_count":4`), want: with()},
		"cannot be asked":   {path: list, answer: mine, path2: status, answer2: raw("595 No route to host", ""), err: `read what belongs to VM 101 "wk1" on pve1: GET /nodes/pve1/replication: 595 No route to host`},
	})
}

// TestOneLookAtManyVMs: what is kept in one place for all VMs, or for all of a host, is read once per look.
func TestOneLookAtManyVMs(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		untied(pve1)
		var vms []cluster.VM
		var jobs, resources string
		for id := 101; id <= 140; id++ {
			for _, what := range []string{"/firewall/rules", "/firewall/options", "/firewall/aliases", "/firewall/ipset", "/snapshot"} {
				list := `[]`
				if what == "/firewall/options" {
					list = `{}`
				}
				pve1.On(fmt.Sprintf("GET /nodes/pve1/qemu/%d%s", id, what), data(list))
			}
			jobs += fmt.Sprintf(`{"id":"%d-0","guest":%d,"pid":%d},`, id, id, id)
			resources += fmt.Sprintf(`{"type":"qemu","vmid":%d,"node":"pve1","pool":"talos"},`, id)
			vms = append(vms, cluster.VM{ID: cluster.VMID(id), Host: "pve1", Config: map[string]string{"tags": "a"}})
		}
		list := func(rows string) route { return data("[" + rows[:len(rows)-1] + "]") }
		pve1.On("GET /cluster/replication", list(jobs))
		pve1.On("GET /nodes/pve1/replication", list(jobs))
		pve1.On("GET /cluster/backup", data(`[{"id":"nightly","pool":"talos","next-run":1}]`))
		pve1.On("GET /cluster/options", data(`{"allowed-tags":["b"]}`))
		pve1.On(listPath, list(resources))
		pve1.On(haList, data(`[]`))
		for look := 1; look <= 2; look++ {
			for i, of := range c.TiesOf(t.Context(), vms) {
				must.Hold(t, of.Err == nil && len(of.Busy) == 2 && len(of.Jobs) == 1 && len(of.Tags) == 1, "%s: %+v", vms[i], of)
			}
			asked := map[string]int{}
			for _, request := range pve1.Requests() {
				asked[request]++
			}
			for request, n := range asked {
				must.Equal(t, request, look, n)
			}
		}
	})
}

func TestLabTies(t *testing.T) {
	inLab(t, func(t *testing.T, l lab) {
		w := cluster.VMID(9011)
		must.Equal(t, "ties of an ordinary VM", cluster.Ties{}, must.Get(l.Ties(t.Context(), l.read(t, w)))(t))
		now := time.Now()
		l.world.SetFirewall(9011, world.Firewall{Options: map[string]string{"enable": "1"}, Rules: []world.FirewallRule{{"type": "in", "action": "ACCEPT", "enable": "1"}}})
		l.world.AddReplication(world.ReplicationJob{ID: "9011-0", Guest: 9011, Target: "pve2", Schedule: "*/15", NextSync: now.Add(5 * time.Minute)})
		l.world.AddReplication(world.ReplicationJob{ID: "9011-1", Guest: 9011, Target: "pve3", Running: true})
		l.world.AddBackupJob(world.BackupJob{ID: "nightly", All: true, NextRun: now.Add(10 * time.Minute)})
		l.world.AddBackupJob(world.BackupJob{ID: "monthly", VMIDs: []int{9011}, NextRun: now.AddDate(0, 1, 0)})
		l.world.AddBackupJob(world.BackupJob{ID: "others", All: true, Exclude: []int{9011}, NextRun: now})
		l.world.AddBackupJob(world.BackupJob{ID: "off", All: true, Disabled: true, NextRun: now})
		l.world.AddHA(world.HAResource{SID: "vm:9011", State: "stopped", Group: "rack1", Options: map[string]string{"max_restart": "3", "comment": "two words"}})
		must.Do(t, l.world.AddSnapshot(9011, world.Snapshot{Name: "before"}))
		l.world.StartBackup("root@pam", "pve1", time.Hour, 9011)
		time.Sleep(time.Minute)
		got := must.Get(l.Ties(t.Context(), l.read(t, w)))(t)
		minute := func(ahead time.Duration) string { return now.Add(ahead).UTC().Format("2006-01-02 15:04 MST") }
		want := cluster.Ties{
			Firewall: cluster.FirewallConfig{
				Options: cluster.FirewallEntry{"enable": "1"}, Rules: []cluster.FirewallEntry{{"type": "in", "action": "ACCEPT", "enable": "1"}},
			},
			Jobs:      []cluster.ReplicationJob{{ID: "9011-0", Target: "pve2", Schedule: "*/15"}, {ID: "9011-1", Target: "pve3"}},
			Snapshots: []string{"before"},
			Busy: []string{
				"locked by a backup", "running task vzdump 9011 on pve1", "backup job nightly due at " + minute(10*time.Minute),
				"replication job 9011-1 runs",
			},
			HA: &cluster.HAResource{VMID: 9011, State: "stopped", Settings: map[string]string{"group": "rack1", "max_restart": "3", "comment": "two words"}},
		}
		must.Equal(t, "ties", want, got)
	})
}

// TestLabHA removes a running VM from HA, deletes it, and adds its successor.
func TestLabHA(t *testing.T) {
	inLab(t, func(t *testing.T, l lab) {
		ctx := t.Context()
		must.Do(t, l.Start(ctx, l.read(t, 9011)))
		l.world.AddHA(world.HAResource{SID: "vm:9011", State: "started", Options: map[string]string{"max_restart": "2"}})
		l.world.AddHARule(world.HARule{ID: "apart", Type: "resource-affinity", Resources: []string{"vm:9011"}})
		vm := l.read(t, 9011)
		ties := must.Get(l.Ties(ctx, vm))(t)
		must.Hold(t, vm.HA && ties.HA != nil, "managed: %v, %v", vm.HA, ties.HA)
		must.Do(t, l.RemoveHA(ctx, 9011))
		must.Do(t, l.RemoveHA(ctx, 9011))
		vm = l.read(t, 9011)
		must.Hold(t, !vm.HA && vm.Running, "taken out: HA %v, running %v", vm.HA, vm.Running)
		must.Do(t, l.Shutdown(ctx, l.read(t, 9011), time.Minute))
		time.Sleep(5 * time.Minute)
		must.Hold(t, !l.read(t, 9011).Running, "started again by an unknown party")
		rules := l.world.HARules()
		must.Hold(t, len(rules) == 1 && len(rules[0].Resources) == 1, "rules are now %v", rules)
		must.Do(t, l.DeleteVM(ctx, l.read(t, 9011)))
		must.Do(t, l.CreateVM(ctx, "pve1", 9011, map[string]string{"name": "wk1", "memory": "2048", "scsi0": "fast:10"}))
		must.Do(t, l.AddHA(ctx, *ties.HA))
		must.Do(t, l.AddHA(ctx, *ties.HA))
		must.Equal(t, "HA resource", ties.HA, must.Get(l.Ties(ctx, l.read(t, 9011)))(t).HA)
	})
}

// TestDueByHostClock: due times follow the clock of the host that computed them,
// which may be a day ahead of ours, or behind.
func TestDueByHostClock(t *testing.T) {
	inEachLab(t, map[string]time.Duration{"a day ahead": 24 * time.Hour, "a day behind": -24 * time.Hour}, func(t *testing.T, l lab, off time.Duration) {
		l.world.SetClock("pve1", off)
		soon, later := time.Now().Add(10*time.Minute), time.Now().Add(cluster.BusyWithin+10*time.Minute)
		l.world.AddBackupJob(world.BackupJob{ID: "soon", All: true, NextRun: soon})
		l.world.AddBackupJob(world.BackupJob{ID: "later", All: true, NextRun: later})
		got := must.Get(l.Ties(t.Context(), l.read(t, 9011)))(t)
		theirs := soon.Add(off).UTC().Format("2006-01-02 15:04 MST")
		must.Equal(t, "busy", []string{"backup job soon due at " + theirs}, got.Busy)
	})
}

// TestLostAnswerAndAClockThatJumps: a worker is found although its host's clock jumped by a day while the answer was
// lost: its failure is known, and nothing is sent twice.
func TestLostAnswerAndAClockThatJumps(t *testing.T) {
	inEachLab(t, map[string]time.Duration{"a day ahead": 24 * time.Hour, "a day back": -24 * time.Hour}, func(t *testing.T, l lab, off time.Duration) {
		must.Do(t, l.CreateVM(t.Context(), "pve1", 9090, nil))
		vm := l.read(t, 9011)
		before := l.recorder.Mutations()
		l.world.FailNext("qmmove", "command '/sbin/lvs' failed: exit code 5")
		l.recorder.Hooks(nil, func(call record.Call) {
			if call.Mutation {
				l.world.SetClock("pve1", off)
				panic(http.ErrAbortHandler)
			}
		})
		wantError(t, l.MoveDisk(t.Context(), vm, "scsi1", 9090, "scsi1"), nil, "exit code 5")
		must.Equal(t, "sent", 1, l.recorder.Mutations()-before)
	})
}
