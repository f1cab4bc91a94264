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

	"github.com/recast-sh/recast/internal/sim/world"
)

func TestNextID(t *testing.T) {
	story(t, "is free, and reserves nothing", 0, func(t *testing.T, s *server) {
		first, second := s.get("/cluster/nextid"), s.get("/cluster/nextid")
		if _, err := strconv.Atoi(text(first)); err != nil || first != second {
			t.Errorf("%v, then %v", first, second)
		}
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
		if got := s.inResources(id); got["name"] != nil || got["status"] != "unknown" {
			t.Errorf("new: %v", got)
		}
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
			if got.Status != "200 OK" || len(list(t, got.Data)) > 0 {
				t.Errorf("%s: %s %s", path, got.Status, got.Body)
			}
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
		if quorate != "1" || !slices.Contains(nodes, s.place.node) || !slices.Contains(nodes, s.place.node2) {
			t.Errorf("quorate %q, nodes %q", quorate, nodes)
		}
	})
	story(t, "needs Sys.Audit", poorToken, func(t *testing.T, s *server) {
		wantRefusal(t, s.poor(http.MethodGet, "/cluster/status"), "403 Permission check failed (/, Sys.Audit)", nil)
	})
	story(t, "a node tells its time", 0, func(t *testing.T, s *server) {
		s.holds("/nodes/"+s.place.node, "Sys.Audit")
		got := object(t, s.get("/nodes/"+s.place.node+"/time"))
		at, err := strconv.ParseInt(text(got["time"]), 10, 64)
		if err != nil || time.Since(time.Unix(at, 0)).Abs() > 24*time.Hour || text(got["timezone"]) == "" {
			t.Error(got)
		}
	})
}

// TestNoQuorum: an isolated node shows no sign of it, and operations that destroy
// something do so before they fail.
func TestNoQuorum(t *testing.T) {
	denied := regexp.MustCompile(`^unable to open file '/etc/pve/nodes/pve1/qemu-server/\d+\.conf\.tmp\.\d+' - Permission denied$`)
	readOnly := func(t *testing.T, got string) {
		t.Helper()
		if !denied.MatchString(got) {
			t.Error(got)
		}
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
			if r["type"] == "cluster" && text(r["quorate"]) != "0" {
				t.Error(r)
			}
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
		if left := s.volumes("data", id); len(left) != 3 {
			t.Errorf("%q", left)
		}
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
		if fmt.Sprint(row) != fmt.Sprint(want) {
			t.Errorf("%v, want %v", row, want)
		}
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
			if r.Code != http.StatusInternalServerError || !strings.Contains(text, "binary not installed: /usr/bin/ceph-mon") && !strings.Contains(text, "pveceph configuration not initialized") {
				t.Fatal(text)
			}
			return
		}
		health := object(t, object(t, r.Data)["health"])
		if status, _ := health["status"].(string); !strings.HasPrefix(status, "HEALTH_") {
			t.Errorf("health %v", health)
		}
		object(t, health["checks"])
	})
}

// TestCephHealth reads what a simulated one says.
func TestCephHealth(t *testing.T) {
	run(t, simulated, func(t *testing.T, s *server) {
		s.sim.world.SetCeph(world.Ceph{Checks: map[string]world.CephCheck{"OSD_FULL": {Severity: "HEALTH_ERR", Message: "1 full osd(s)"}}})
		health := object(t, object(t, s.get("/nodes/pve1/ceph/status"))["health"])
		check := object(t, object(t, health["checks"])["OSD_FULL"])
		if health["status"] != "HEALTH_ERR" || check["severity"] != "HEALTH_ERR" || object(t, check["summary"])["message"] != "1 full osd(s)" {
			t.Errorf("health %v", health)
		}
		s.sim.world.SetCeph(world.Ceph{Silent: true})
		if r := s.do(http.MethodGet, "/nodes/pve1/ceph/status"); r.Code != http.StatusInternalServerError {
			t.Errorf("silent monitors: %s", r.Status)
		}
	})
}

// TestHostMemory reads how much memory a scratch VM may use on its host.
func TestHostMemory(t *testing.T) {
	run(t, 0, func(t *testing.T, s *server) {
		s.holds("/nodes/"+s.place.node, "Sys.Audit")
		memory := object(t, object(t, s.get("/nodes/"+s.place.node+"/status"))["memory"])
		total, _ := memory["total"].(float64)
		used, _ := memory["used"].(float64)
		if total <= 0 || used < 0 || used > total {
			t.Fatalf("memory %v", memory)
		}
		free, err := s.newClient().FreeMemory(t.Context(), s.place.node)
		if err != nil || free <= 0 || free > int64(total) {
			t.Errorf("free memory of %s: %d of %.0f bytes, %v", s.place.node, free, total, err)
		}
	})
}
