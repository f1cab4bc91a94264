package contract

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/checkup"
)

// TestPermissions: /access/permissions, on which doctor relies.
func TestPermissions(t *testing.T) {
	story(t, "a path that does not exist has what comes from above", 0, func(t *testing.T, s *server) {
		id := s.freeID()
		for _, path := range []string{"/vms/" + itoa(id), "/storage/nosuch"} {
			answer := object(t, s.get("/access/permissions", "path="+path))
			held, there := answer[path]
			if len(answer) != 1 || !there {
				t.Fatalf("asked about %s: %v", path, answer)
			}
			for privilege, propagates := range object(t, held) {
				if p := text(propagates); p != "0" && p != "1" {
					t.Errorf("%s at %s is %v, neither 0 nor 1", privilege, path, propagates)
				}
			}
		}
	})
	story(t, "a token with nothing is shown that, and no one else's", poorToken, func(t *testing.T, s *server) {
		for form, want := range map[string]any{"path=/vms": map[string]any{"/vms": map[string]any{}}, "": map[string]any{}} {
			r := s.poor(http.MethodGet, "/access/permissions?"+form)
			same(t, http.StatusOK, r.Code)
			same(t, want, r.Data)
		}
		r := s.poor(http.MethodGet, "/access/permissions", "userid=root@pam")
		wantRefusal(t, r, "403 Permission check failed (/access, Sys.Audit)", nil)
	})
	story(t, "the state of the cluster is not shown without Sys.Audit", poorToken, func(t *testing.T, s *server) {
		at := "/nodes/" + s.place.node
		for path, want := range map[string]int{
			"/cluster/status": http.StatusForbidden, at + "/time": http.StatusForbidden,
			"/version": http.StatusOK, "/nodes": http.StatusOK, at + "/version": http.StatusOK, // everybody may see them
		} {
			if r := s.poor(http.MethodGet, path); r.Code != want {
				t.Errorf("GET %s: %s", path, r.Status)
			}
		}
	})
}

// TestUserPermissions: the permissions of a token's user, which are shown with Sys.Audit
// on /access.
func TestUserPermissions(t *testing.T) {
	run(t, 0, func(t *testing.T, s *server) {
		audits := slices.Contains(s.privileges("/access"), "Sys.Audit")
		standing, err := s.client.Standing(t.Context(), []string{"/vms"})
		must(t, err)
		at := standing["/vms"]
		if at.Whole != audits {
			t.Errorf("it has Sys.Audit on /access: %v, and is shown it: %v", audits, at.Whole)
		}
		for privilege := range at.Token {
			if _, has := at.User[privilege]; at.Whole && !has {
				t.Errorf("the token has %s on /vms, its user has not", privilege)
			}
		}
	})
}

// poorAccess is the access of the token without permissions.
type poorAccess struct{ s *server }

func (poorAccess) TokenID() string { return "poor@pve!token" }

func (a poorAccess) Permissions(_ context.Context, path string) (cluster.Privileges, error) {
	r := a.s.poor(http.MethodGet, "/access/permissions", "path="+path)
	var answer struct{ Data map[string]map[string]int }
	if err := json.Unmarshal(r.Body, &answer); err != nil || r.Code != http.StatusOK {
		return nil, errors.Join(errors.New(r.Status), err)
	}
	out := cluster.Privileges{}
	for privilege, propagates := range answer.Data[path] {
		out[privilege] = propagates != 0
	}
	return out, nil
}

func (a poorAccess) Standing(context.Context, []string) (map[string]cluster.Standing, error) {
	return nil, nil // it may not see its user's permissions
}

// TestDoctor is the part of recast doctor that needs no Talos, for the recreation of a VM
// of these tests.
func TestDoctor(t *testing.T) {
	story(t, "a token with nothing lacks all of it", poorToken, func(t *testing.T, s *server) {
		needs := survey.NeedsToRoll([]string{s.place.isoStorage}, []string{s.place.node}, cluster.Recreate)
		missing, err := needs.Missing(t.Context(), poorAccess{s})
		must(t, err)
		if len(missing.Lacks) != len(needs) {
			t.Errorf("it lacks %d of %d: %s", len(missing.Lacks), len(needs), missing)
		}
	})
	story(t, "what a recreate takes is compared with what the token has", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0="+s.place.storage+":1,serial=system", "scsi1="+s.place.storage+":1,serial=data", "net0=virtio,bridge="+s.place.bridge)
		res := s.doctor(id)
		for _, n := range res.Needs {
			has := slices.Contains(s.privileges(n.Path), n.Privilege)
			if n.Granted && !has || !n.Granted && has && n.Path != "/vms" && n.Path != "/" { // there it must also propagate
				t.Errorf("%s on %s: granted %v, has %v", n.Privilege, n.Path, n.Granted, has)
			}
		}
		for _, want := range []string{
			"Sys.Audit on /", "VM.Allocate on /vms", "VM.Config.Disk on /vms", "Datastore.AllocateSpace on /storage/" + s.place.storage,
			"Datastore.AllocateTemplate on /storage/" + s.place.isoStorage, "SDN.Use on /sdn/zones/localnetwork/" + s.place.bridge,
		} {
			if !slices.ContainsFunc(res.Needs, func(n checkup.NeedStatus) bool { return n.Privilege+" on "+n.Path == want }) {
				t.Errorf("%s is not said to be needed", want)
			}
		}
		if major, _, _ := strings.Cut(res.Version, "."); major != "8" && major != "9" {
			t.Errorf("version %q", res.Version)
		}
	})
	story(t, "nothing but what the token lacks is in the way", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0="+s.place.storage+":1,serial=system", "net0=virtio,bridge="+s.place.bridge)
		for _, c := range s.doctor(id).Checks {
			if c.State == checkup.Problem && !strings.HasPrefix(c.What, "clock of ") && (c.Group == checkup.GroupProxmox || c.Group == checkup.GroupStorage) {
				t.Errorf("%s: %s: %s", c.Group, c.What, c.Seen)
			}
		}
	})
	story(t, "a VM's protection is not in the way", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0="+s.place.storage+":1,serial=system", "protection=1")
		against := s.doctor(id).Nodes[0].Against[cluster.Recreate]
		if slices.ContainsFunc(against, func(r string) bool { return strings.Contains(r, "protect") }) {
			t.Errorf("against recreate: %q", against)
		}
	})
}

// doctor checks a project whose only node is that VM.
func (s *server) doctor(id int) checkup.Result {
	s.t.Helper()
	c := &config.Config{
		Cluster: "contract", Dir: s.t.TempDir(), Talos: config.Talos{Version: "v1.13.9"},
		Proxmox: config.Proxmox{VMIDs: config.VMIDRange{First: s.place.last, Last: s.place.last}},
		Nodes:   []config.Node{{Name: "n1", Schematic: "default", VMID: id, Strategy: "recreate"}},
	}
	c.Images.ISO = config.ISO{Storage: []string{s.place.isoStorage}, Delivery: "auto"}
	c.Roll.MaxUnavailable.PerHost = 1
	absent := fault.Configf("there is none here")
	return checkup.Run(s.t.Context(), pipeline.Project{Config: c}, checkup.Sources{
		Proxmox: s.client, Endpoints: []checkup.Endpoint{{URL: s.place.endpoint, Hosts: s.client.Hosts}},
		ErrTalos: absent, ErrKube: absent, ErrImages: absent,
	})
}
