package contract

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/world"
)

func TestNextID(t *testing.T) {
	story(t, "is free, and reserves nothing", 0, func(t *testing.T, s *server) {
		first, second := s.get("/cluster/nextid"), s.get("/cluster/nextid")
		_, err := strconv.Atoi(text(first))
		must.Hold(t, err == nil && first == second, "%v, then %v", first, second)
	})
	story(t, "says that a number is taken", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		got := s.do(http.MethodGet, "/cluster/nextid", "vmid="+itoa(id))
		wantRefusal(t, got, refused, map[string]string{"vmid": fmt.Sprintf("VM %d already exists", id)})
	})
	story(t, "says so also of a VM that the token may not see", poorToken, func(t *testing.T, s *server) {
		id := s.newVM()
		got := s.poor(http.MethodGet, "/cluster/nextid", "vmid="+itoa(id))
		wantRefusal(t, got, refused, map[string]string{"vmid": fmt.Sprintf("VM %d already exists", id)})
	})
}

// inResources is the cluster's entry of a VM; nil: none.
func (s *server) inResources(id int) map[string]any {
	s.t.Helper()
	for _, r := range s.rows("/cluster/resources", "type=vm") {
		if text(r["vmid"]) == itoa(id) {
			return r
		}
	}
	return nil
}

// shows waits until the cluster knows what the VM's node knows already.
func (s *server) shows(id int, key, want string) {
	s.t.Helper()
	for began := time.Now(); ; time.Sleep(time.Second) {
		got := text(s.inResources(id)[key])
		if got == want {
			return
		}
		if time.Since(began) > 30*time.Second {
			if s.sim == nil && (got == "" || got == "unknown") {
				s.skipf("needs pvestatd, which reports what the node's VMs are doing")
			}
			s.t.Fatalf("%s is %q after half a minute, want %q", key, got, want)
		}
	}
}

func TestResources(t *testing.T) {
	story(t, "find a VM at once, its state some seconds later", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		same(t, s.place.node, s.inResources(id)["node"])
		s.shows(id, "name", "recast-contract-"+itoa(id))
		s.shows(id, "status", "stopped")
		s.start(id)
		s.shows(id, "status", "running")
		s.stop(id)
		s.shows(id, "status", "stopped")
		s.taskOK(http.MethodDelete, s.vm(id, ""))
		same(t, map[string]any(nil), s.inResources(id))
	})
	story(t, "show what was, until the next report", simulated, func(t *testing.T, s *server) {
		id := s.newVM()
		got := s.inResources(id)
		must.Hold(t, got["name"] == nil && got["status"] == "unknown", "new: %v", got)
		s.shows(id, "status", "stopped")
		s.start(id)
		same(t, "stopped", s.inResources(id)["status"])
		s.shows(id, "status", "running")
		s.stop(id)
		same(t, "running", s.inResources(id)["status"])
	})
	story(t, "are empty for a token without rights, not refused", poorToken, func(t *testing.T, s *server) {
		s.newVM()
		for _, path := range []string{"/cluster/resources?type=vm", "/nodes/" + s.place.node + "/qemu", "/nodes/" + s.place.node + "/storage", "/storage", "/pools", "/access/acl"} {
			got := s.poor(http.MethodGet, path)
			must.Hold(t, got.Status == "200 OK" && len(list(t, got.Data)) == 0, "%s: %s %s", path, got.Status, got.Body)
		}
	})
}

func TestClusterStatus(t *testing.T) {
	story(t, "says whether there is quorum", secondNode, func(t *testing.T, s *server) {
		s.holds("/", "Sys.Audit")
		quorate, nodes := "", []string{}
		for _, r := range s.rows("/cluster/status") {
			switch r["type"] {
			case "cluster":
				quorate = text(r["quorate"])
			case "node":
				nodes = append(nodes, text(r["name"]))
			}
		}
		must.Hold(t, quorate == "1" && slices.Contains(nodes, s.place.node) && slices.Contains(nodes, s.place.node2),
			"quorate %q, nodes %q", quorate, nodes)
	})
	story(t, "a node tells its time", 0, func(t *testing.T, s *server) {
		s.holds("/nodes/"+s.place.node, "Sys.Audit")
		got := object(t, s.get("/nodes/"+s.place.node+"/time"))
		at, err := strconv.ParseInt(text(got["time"]), 10, 64)
		must.Hold(t, err == nil && time.Since(time.Unix(at, 0)).Abs() <= 24*time.Hour && text(got["timezone"]) != "", "%v", got)
	})
}

// TestNoQuorum: an isolated node shows no sign of it, and operations that destroy something do so before they fail.
func TestNoQuorum(t *testing.T) {
	denied := regexp.MustCompile(`^unable to open file '/etc/pve/nodes/pve1/qemu-server/\d+\.conf\.tmp\.\d+' - Permission denied$`)
	readOnly := func(t *testing.T, got string) {
		t.Helper()
		must.Hold(t, denied.MatchString(got), "%v", got)
	}
	refusedChange := func(t *testing.T, s *server, id int, form string) {
		t.Helper()
		got := s.do(http.MethodPut, s.vm(id, "config"), form)
		same(t, http.StatusInternalServerError, got.Code)
		readOnly(t, got.Status[len("500 "):])
	}
	inIsolation := func(name string, test func(t *testing.T, s *server, id int)) {
		story(t, name, simulated, func(t *testing.T, s *server) {
			id := s.newVM("scsi0="+s.disk(), "scsi1="+s.disk())
			s.put(s.vm(id, "config"), "delete=scsi1")
			s.sim.world.SetQuorum(false)
			test(t, s, id)
			s.sim.world.SetQuorum(true)
		})
	}
	inIsolation("reads, logins and uploads work", func(t *testing.T, s *server, id int) {
		s.get(s.vm(id, "config"))
		s.uploadOK(iso(), file(s.isoName(), "bytes"))
		s.login("correct-horse")
		for _, r := range s.rows("/cluster/status") {
			must.Hold(t, r["type"] != "cluster" || text(r["quorate"]) == "0", "%v", r)
		}
	})
	inIsolation("a change can't be written", func(t *testing.T, s *server, id int) {
		refusedChange(t, s, id, "cores=2")
		s.wantKey(id, "cores", "")
	})
	inIsolation("create and start look first", func(t *testing.T, s *server, id int) {
		wantRefusal(t, s.do(http.MethodPost, s.vm(id, "status/start")), "500 cluster not ready - no quorum?", nil)
		wantRefusal(t, s.do(http.MethodPost, "/nodes/pve1/qemu", "vmid=90050"), "500 cluster not ready - no quorum?", nil)
	})
	inIsolation("pools are locked", func(t *testing.T, s *server, _ int) {
		s.holds("/pool", "Pool.Allocate")
		wantRefusal(t, s.do(http.MethodPost, "/pools", "poolid=new"), "500 create pool failed: cfs-lock 'file-user_cfg' error: no quorum!", nil)
	})
	inIsolation("destroying frees the disks, then fails", func(t *testing.T, s *server, id int) {
		volid := s.volid(id, "scsi0")
		readOnly(t, s.task(http.MethodDelete, s.vm(id, "")).Exit)
		s.wantVolumes(id)
		same(t, volid, s.volid(id, "scsi0"))
	})
	inIsolation("a new disk is allocated, then belongs to nothing", func(t *testing.T, s *server, id int) {
		refusedChange(t, s, id, "scsi3="+s.disk())
		s.wantKey(id, "scsi3", "")
		same(t, 3, len(s.volumes("data", id)))
	})
	inIsolation("freeing a detached disk frees it, then fails", func(t *testing.T, s *server, id int) {
		volid := s.volid(id, "unused0")
		refusedChange(t, s, id, "delete=unused0")
		s.wantFreed(volid)
		s.wantKey(id, "unused0", volid)
	})
}

func TestThinPools(t *testing.T) {
	run(t, simulated, func(t *testing.T, s *server) {
		s.sim.world.AddStorage(world.Storage{ID: "thin", Type: "lvmthin", Content: []string{"images"}, Capacity: 100 << 30, ThinPool: "data"})
		s.sim.world.SetThinPool("thin", "pve1", world.ThinPool{Used: 90 << 30, MetadataSize: 1 << 30, MetadataUsed: 1 << 29})
		row := object(t, list(t, s.get("/nodes/pve1/disks/lvmthin"))[0])
		want := map[string]any{
			"lv": "data", "vg": "pve", "lv_size": float64(100 << 30), "used": float64(90 << 30), "metadata_size": float64(1 << 30), "metadata_used": float64(1 << 29),
		}
		same(t, fmt.Sprint(want), fmt.Sprint(row))
	})
}

// TestCephOfHosts reads how the hosts' own Ceph is, or that there is none.
func TestCephOfHosts(t *testing.T) {
	run(t, 0, func(t *testing.T, s *server) {
		s.holds("/", "Sys.Audit")
		at := "/nodes/" + s.place.node + "/ceph/status"
		r := s.do(http.MethodGet, at)
		if r.Code != http.StatusOK {
			text := r.Status + " " + string(r.Body)
			must.Be(t, r.Code == http.StatusInternalServerError && (strings.Contains(text, "binary not installed: /usr/bin/ceph-mon") || strings.Contains(text, "pveceph configuration not initialized")), "%v", text)
			return
		}
		health := object(t, object(t, r.Data)["health"])
		status, _ := health["status"].(string)
		must.Hold(t, strings.HasPrefix(status, "HEALTH_"), "health %v", health)
		object(t, health["checks"])
	})
}

// TestCephHealth reads what a simulated one says.
func TestCephHealth(t *testing.T) {
	run(t, simulated, func(t *testing.T, s *server) {
		s.sim.world.SetCeph(world.Ceph{Checks: map[string]world.CephCheck{"OSD_FULL": {Severity: "HEALTH_ERR", Message: "1 full osd(s)"}}})
		health := object(t, object(t, s.get("/nodes/pve1/ceph/status"))["health"])
		check := object(t, object(t, health["checks"])["OSD_FULL"])
		must.Hold(t, health["status"] == "HEALTH_ERR" && check["severity"] == "HEALTH_ERR" &&
			object(t, check["summary"])["message"] == "1 full osd(s)", "health %v", health)
		s.sim.world.SetCeph(world.Ceph{Silent: true})
		same(t, http.StatusInternalServerError, s.do(http.MethodGet, "/nodes/pve1/ceph/status").Code)
	})
}

// TestHostMemory reads how much memory a scratch VM may use on its host.
func TestHostMemory(t *testing.T) {
	run(t, 0, func(t *testing.T, s *server) {
		s.holds("/nodes/"+s.place.node, "Sys.Audit")
		memory := object(t, object(t, s.get("/nodes/"+s.place.node+"/status"))["memory"])
		total, _ := memory["total"].(float64)
		used, _ := memory["used"].(float64)
		must.Be(t, total > 0 && used >= 0 && used <= total, "memory %v", memory)
		free, err := s.newClient().FreeMemory(t.Context(), s.place.node)
		must.Hold(t, err == nil && free > 0 && free <= int64(total),
			"free memory of %s: %d of %.0f bytes, %v", s.place.node, free, total, err)
	})
}

const haResources = "/cluster/ha/resources"

// managesHA skips a test if HA can't be used.
func (s *server) managesHA() {
	s.t.Helper()
	s.holds("/", "Sys.Console")
	s.holds("/", "Sys.Audit")
	isCluster := slices.ContainsFunc(list(s.t, s.get("/cluster/status")), func(row any) bool { return object(s.t, row)["type"] == "cluster" })
	if !isCluster {
		s.skipf("needs a cluster")
	}
}

// newManaged makes a VM under HA; state may be "".
func (s *server) newManaged(state string) int {
	s.t.Helper()
	id := s.newVM()
	r := s.do(http.MethodPost, haResources, "sid=vm:"+itoa(id), "state="+state)
	must.Be(s.t, r.Code == http.StatusOK, "put VM %d under HA: %s", id, r.Status)
	return id
}

// becomes waits until HA has started or stopped a VM.
func (s *server) becomes(id int, want string) {
	s.t.Helper()
	for began := time.Now(); ; time.Sleep(time.Second) {
		got := object(s.t, s.get(s.vm(id, "status/current")))
		state := text(object(s.t, got["ha"])["state"])
		if got["status"] == want && state == map[string]string{"running": "started", "stopped": "stopped"}[want] {
			return
		}
		if time.Since(began) > 3*time.Minute {
			if s.sim == nil && (state == "" || state == "queued") {
				s.skipf("needs pve-ha-crm and pve-ha-lrm, which have not looked at the VM")
			}
			s.t.Fatalf("VM %d is %v, HA says %v; want %s", id, got["status"], got["ha"], want)
		}
	}
}

func TestHA(t *testing.T) {
	story(t, "start and stop are requests, carried out some time later", 0, func(t *testing.T, s *server) {
		s.managesHA()
		id := s.newManaged("stopped")
		s.becomes(id, "stopped")
		for _, step := range []struct{ action, kind, now, later string }{
			{"start", "hastart", "stopped", "running"},
			{"stop", "hastop", "running", "stopped"},
		} {
			same(t, step.kind, s.taskOK(http.MethodPost, s.vm(id, "status/"+step.action)).kind())
			if s.sim != nil { // a real manager may have had a round just now
				same(t, step.now, object(t, s.get(s.vm(id, "status/current")))["status"])
			}
			s.becomes(id, step.later)
			state := map[string]string{"running": "started", "stopped": "stopped"}[step.later]
			same(t, state, object(t, s.get(haResources+"/vm:"+itoa(id)))["state"])
		}
	})
	story(t, "removal needs purge", 0, func(t *testing.T, s *server) {
		s.managesHA()
		id := s.newManaged("stopped")
		s.becomes(id, "stopped")
		want := fmt.Sprintf("500 unable to remove VM %d - used in HA resources and purge parameter not set.", id)
		wantRefusal(t, s.do(http.MethodDelete, s.vm(id, "")), want, nil)
		s.taskOK(http.MethodDelete, s.vm(id, ""), "purge=1")
		same(t, "", s.managedAs(id))
	})
	story(t, "ignored leaves the VM to others", 0, func(t *testing.T, s *server) {
		s.managesHA()
		id := s.newManaged("ignored")
		same(t, "qmstart", strings.Split(s.taskOK(http.MethodPost, s.vm(id, "status/start")).UPID, ":")[5])
		s.stop(id)
	})
	story(t, "a guest that powers itself off is started again", simulated, func(t *testing.T, s *server) {
		s.managesHA()
		id := s.newManaged("started")
		s.becomes(id, "running")
		must.Do(t, s.sim.world.PowerOff(id))
		s.wantStatus(id, "stopped")
		s.becomes(id, "running")
	})
}

func TestAgent(t *testing.T) {
	const interfaces = "agent/network-get-interfaces"
	for form, want := range map[string]string{
		"agent=1": "QEMU guest agent is not running", "agent=0": "QEMU guest agent is not running", "cores=1": "No QEMU guest agent configured",
	} {
		story(t, "that nobody runs, "+form, 0, func(t *testing.T, s *server) {
			s.holds("/vms", "VM.GuestAgent.Audit")
			id, began := s.newVM(form), time.Now()
			if form == "agent=1" {
				wantRefusal(t, s.do(http.MethodGet, s.vm(id, interfaces)), fmt.Sprintf("500 VM %d is not running", id), nil)
			}
			s.start(id)
			wantRefusal(t, s.do(http.MethodGet, s.vm(id, interfaces)), "500 "+want, nil)
			wantTook(t, began, 0, 30*time.Second)
		})
	}
}

// wall gives a VM a firewall with rules that name a set, which names an alias.
func (s *server) wall(id int) {
	s.t.Helper()
	at := s.vm(id, "firewall")
	for _, request := range [][]string{
		{http.MethodPost, "/aliases", "name=Desk", "cidr=192.0.2.7", "comment=Alice's"},
		{http.MethodPost, "/ipset", "name=admins", "comment=who may"},
		{http.MethodPost, "/ipset/admins", "cidr=192.0.2.128/28"},
		{http.MethodPost, "/ipset/admins", "cidr=192.0.2.130", "nomatch=1", "comment=but not this"},
		{http.MethodPost, "/rules", "type=in", "action=ACCEPT", "enable=1", "proto=tcp", "dport=50000", "source=+admins"},
		{http.MethodPost, "/rules", "type=in", "action=DROP", "source=desk", "comment=comes before it"},
		{http.MethodPut, "/options", "enable=1", "policy_in=DROP"},
	} {
		if r := s.do(request[0], at+request[1], request[2:]...); r.Code != http.StatusOK {
			s.t.Fatalf("%s: %s %v", strings.Join(request, " "), r.Status, r.Errors)
		}
	}
}

// firewall is a VM's whole firewall, without checksums.
func (s *server) firewall(id int) map[string]any {
	s.t.Helper()
	out := map[string]any{}
	for _, part := range []string{"aliases", "ipset", "ipset/admins", "options", "rules"} {
		data := s.get(s.vm(id, "firewall/"+part))
		rows, isList := data.([]any)
		if !isList {
			rows = []any{data}
		}
		for _, row := range rows {
			o := object(s.t, row)
			delete(o, "digest")
			delete(o, "ipversion") // in rules and aliases
			for key, value := range o {
				o[key] = text(value)
			}
		}
		out[part] = rows
	}
	return out
}

func TestFirewall(t *testing.T) {
	story(t, "a rule is added before all others, and is off unless it says otherwise", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		s.wall(id)
		want := map[string]any{
			"aliases":      []any{map[string]any{"name": "Desk", "cidr": "192.0.2.7", "comment": "Alice's"}},
			"ipset":        []any{map[string]any{"name": "admins", "comment": "who may"}},
			"ipset/admins": []any{map[string]any{"cidr": "192.0.2.128/28"}, map[string]any{"cidr": "192.0.2.130", "nomatch": "1", "comment": "but not this"}},
			"options":      []any{map[string]any{"enable": "1", "policy_in": "DROP"}},
			"rules": []any{
				map[string]any{"pos": "0", "type": "in", "action": "DROP", "enable": "0", "source": "desk", "comment": "comes before it"},
				map[string]any{"pos": "1", "type": "in", "action": "ACCEPT", "enable": "1", "proto": "tcp", "dport": "50000", "source": "+admins"},
			},
		}
		same(t, want, s.firewall(id))
	})
	story(t, "what it names must be there", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		for source, want := range map[string]string{"nobody": "no such alias 'nobody'", "+nobody": "no such ipset 'nobody'"} {
			r := s.do(http.MethodPost, s.vm(id, "firewall/rules"), "type=in", "action=DROP", "source="+source)
			got := strings.TrimSpace(r.Errors["source"])
			must.Hold(t, r.Code == http.StatusBadRequest && got == want, "%s: %s, source: %s", source, r.Status, got)
		}
	})
	story(t, "it goes with the VM", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		s.wall(id)
		s.taskOK(http.MethodDelete, s.vm(id, ""))
		s.taskOK(http.MethodPost, "/nodes/"+s.place.node+"/qemu", "vmid="+itoa(id))
		same(t, 0, len(list(t, s.get(s.vm(id, "firewall/rules")))))
	})
}
