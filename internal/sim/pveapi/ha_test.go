package pveapi_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/world"
)

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
	t.Parallel()
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
		must(t, l.world.PowerOn(9011))
		l.world.AddHA(world.HAResource{SID: "vm:9011", State: "started"})
		l.world.AddHARule(rule)
		l.world.AddHARule(alone)
		if got := l.root("DELETE", resources+"/vm:9011", test.form...).Status; got != "200 OK" {
			t.Fatal(got)
		}
		if diff := cmp.Diff(test.want, l.do("GET", "/cluster/ha/rules").Data); diff != "" {
			t.Error(diff)
		}
		if got := l.services(); !cmp.Equal(got, []string{"vm:9011 deleting"}) {
			t.Error("before the manager's round: ", got)
		}
		time.Sleep(time.Minute)
		if diff := cmp.Diff([]any{"running", map[string]any{"managed": 0.0}}, l.ha()); diff != "" {
			t.Error(diff)
		}
		if got := l.services(); got != nil {
			t.Error(got)
		}
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
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		must(t, l.world.PowerOn(9011))
		l.world.AddHA(world.HAResource{SID: "vm:9011", State: "started"})
		l.root("DELETE", resources+"/vm:9011", "purge=0")
		if got := l.task("POST", vm+"/status/stop"); got != "OK" {
			t.Fatal(got)
		}
		time.Sleep(20 * time.Second)
		if got := l.ha()[0]; got != "running" {
			t.Error(got)
		}
		if got := l.task("POST", vm+"/status/stop"); got != "OK" {
			t.Fatal(got)
		}
		time.Sleep(time.Minute)
		if got := l.ha()[0]; got != "stopped" {
			t.Error(got)
		}
	})
}

func TestHAThatCannotStart(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		l.world.SetLock(9011, "backup")
		l.world.AddHA(world.HAResource{SID: "vm:9011", State: "started"})
		time.Sleep(2 * time.Minute)
		if diff := cmp.Diff(managed("stopped", "error"), l.ha()); diff != "" {
			t.Fatal(diff)
		}
		if got, want := l.root("PUT", resources+"/vm:9011", "state=started").Status, "500 service 'vm:9011' in error state, must be disabled and fixed first"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		l.world.SetLock(9011, "")
		for _, state := range []string{"disabled", "started"} {
			if got := l.root("PUT", resources+"/vm:9011", "state="+state).Status; got != "200 OK" {
				t.Error(got)
			}
			time.Sleep(30 * time.Second)
		}
		if diff := cmp.Diff(managed("running", "started"), l.ha()); diff != "" {
			t.Error(diff)
		}
		l.root("PUT", resources+"/vm:9011", "state=ignored")
		time.Sleep(30 * time.Second)
		if diff := cmp.Diff([]any{"running", map[string]any{"managed": 0.0}}, l.ha()); diff != "" {
			t.Error(diff)
		}
		if got := l.task("POST", vm+"/status/stop"); got != "OK" {
			t.Error(got)
		}
		if got := l.do("DELETE", vm).Status; got != "500 unable to remove VM 9011 - used in HA resources and purge parameter not set." {
			t.Error(got)
		}
	})
}

func TestHARefusals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, talosRole()...)
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
			if test.got != test.want {
				t.Errorf("%s: %s, want %s", name, test.got, test.want)
			}
		}
		l.world.SetQuorum(false)
		if got, want := l.root("DELETE", resources+"/vm:9011").Status, "500 delete resource failed: cfs-lock 'domain-ha' error: no quorum!"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}
