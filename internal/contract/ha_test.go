package contract

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

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
	if r := s.do(http.MethodPost, haResources, "sid=vm:"+itoa(id), "state="+state); r.Code != http.StatusOK {
		s.t.Fatalf("put VM %d under HA: %s", id, r.Status)
	}
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
			e := s.taskOK(http.MethodPost, s.vm(id, "status/"+step.action))
			same(t, step.kind, e.kind())
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
		if e := s.taskOK(http.MethodPost, s.vm(id, "status/start")); strings.Split(e.UPID, ":")[5] != "qmstart" {
			t.Error(e.UPID)
		}
		s.stop(id)
	})
	story(t, "its configuration needs Sys.Console", poorToken, func(t *testing.T, s *server) {
		want := "403 Permission check failed (/, Sys.Console)"
		sid := "vm:" + itoa(s.newVM())
		wantRefusal(t, s.poor(http.MethodPost, haResources, "sid="+sid), want, nil)
		wantRefusal(t, s.poor(http.MethodPut, haResources+"/"+sid, "state=stopped"), want, nil)
		wantRefusal(t, s.poor(http.MethodDelete, haResources+"/"+sid), want, nil)
	})
	story(t, "a guest that powers itself off is started again", simulated, func(t *testing.T, s *server) {
		s.managesHA()
		id := s.newManaged("started")
		s.becomes(id, "running")
		must(t, s.sim.world.PowerOff(id))
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
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("after %v", took)
			}
		})
	}
}
