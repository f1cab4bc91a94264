package simtest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
)

const (
	typeControlPlane = "type: controlplane"
	typeInit         = "type: init"
	beginsAlone      = "Talos begins a new, empty etcd"
)

// makeInit gives a control plane the type that an old talosctl gen config gave the first one. It keeps etcd's data.
func (l *Lab) makeInit(name string) {
	l.t.Helper()
	text := strings.Replace(string(l.configOf(name)), typeControlPlane, typeInit, 1)
	l.talosctl(name, func(ctx context.Context, c *client.Client) error {
		_, err := c.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Data: []byte(text), Mode: machineapi.ApplyConfigurationRequest_STAGED})
		return err
	})
	l.talosctl(name, func(ctx context.Context, c *client.Client) error { return c.Reboot(ctx) })
	time.Sleep(3 * time.Minute)
	if !strings.Contains(string(l.configOf(name)), typeInit) {
		l.t.Fatalf("%s is not of that type", name)
	}
}

// requireOneEtcd fails if a second etcd was begun, or members are missing.
func (l *Lab) requireOneEtcd(members ...string) {
	l.t.Helper()
	var got []string
	for _, m := range l.EtcdMembers() {
		got = append(got, m.Name)
	}
	if slices.Sort(got); !slices.Equal(got, members) {
		l.t.Errorf("etcd has %q, want %q", got, members)
	}
	for _, v := range l.EtcdViolations() {
		l.t.Errorf("etcd: %s", v)
	}
}

// TestTypeInit: no strategy takes etcd's data from a control plane of type init, which would begin a second
// etcd without them; another type lifts that.
func TestTypeInit(t *testing.T) {
	inLab(t, sim.Options{ControlPlanes: 3, Workers: sim.None}, func(t *testing.T, lab *Lab) {
		lab.makeInit("cp1")
		lab.Patch(everywhere)
		only := planning.Policy{Only: []string{"cp1"}}
		if p := lab.planOf(lab.Client(), "cp1", only); p.Strategy != cluster.InPlace || !strings.Contains(p.Why, beginsAlone) || len(p.Refused) > 0 {
			t.Errorf("planned as %s, %s: %q", p.Strategy, p.Why, p.Refused)
		}
		for _, s := range []string{"recreate", "reimage"} {
			user := lab.Client()
			lab.Replace("recast.yaml", "vmid: 9001}", "vmid: 9001, strategy: "+s+"}")
			from := len(lab.Recorder.Calls())
			requireRefused(t, user.roll(only)(t.Context()), beginsAlone)
			lab.requireLeftAlone(from, "cp1")
			lab.Replace("recast.yaml", ", strategy: "+s+"}", "}")
		}
		requireRefused(t, errOf(lab.Client().Remove(t.Context(), "cp1")), beginsAlone)

		files := configFiles{"cp1": cluster.Secret(strings.Replace(string(lab.configOf("cp1")), typeInit, typeControlPlane, 1))}
		user := files.user(lab, firstRun)
		configure := only
		configure.What = []planning.What{planning.Config}
		if p := lab.planOf(user, "cp1", configure); p.Strategy != cluster.ApplyConfig || len(p.Refused) > 0 {
			t.Fatalf("another type is planned as %s: %q", p.Strategy, p.Refused)
		}
		must(t, user.roll(configure)(t.Context()))
		if p := lab.planOf(user, "cp1", only); p.Strategy != cluster.Recreate || len(p.Refused) > 0 {
			t.Fatalf("with another type it is planned as %s, %s: %q", p.Strategy, p.Why, p.Refused)
		}
		must(t, user.roll(only)(t.Context()))
		lab.requireOneEtcd("cp1", "cp2", "cp3")
		lab.RequireIntact()
	})
}
