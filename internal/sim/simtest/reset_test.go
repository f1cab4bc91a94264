package simtest

import (
	"context"
	"crypto/tls"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"google.golang.org/grpc"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/world"
)

// TestResetMachine: a person has reset a node, which is in maintenance mode. If its
// configuration is at hand a roll applies it and then rolls the node to the wanted build;
// else the error says which command to type, and that works.
func TestResetMachine(t *testing.T) {
	type story struct {
		node   string
		labels []string
		files  bool // talos.machineConfigs
	}
	cases := map[string]story{
		"a worker":                                {"wk1", []string{"STATE"}, true},
		"a worker, with all it had":               {"wk1", []string{"STATE", "EPHEMERAL"}, true},
		"a worker, its configuration lost":        {"wk1", []string{"STATE"}, false},
		"a control plane":                         {"cp2", []string{"STATE"}, true},
		"a control plane, with its data":          {"cp2", []string{"STATE", "EPHEMERAL"}, true},
		"a control plane, its configuration lost": {"cp2", []string{"STATE", "EPHEMERAL"}, false},
	}
	eachLong(t, sim.Options{ControlPlanes: 3, Workers: 1}, cases, func(t *testing.T, lab *Lab, c story) {
		configs := lab.machineConfigs()
		lab.Patch(everywhere)
		lab.reset(c.node, c.labels...)
		user := lab.Client()
		var plans []string
		user.Confirm = func(p planning.Plan) (bool, error) {
			for _, n := range p.Work() {
				plans = append(plans, n.Node+" "+string(n.Strategy))
			}
			return true, nil
		}
		want := []string{c.node + " recreate"}
		if c.files {
			user.MachineConfig = configs
			want = slices.Insert(want, 0, c.node+" install-reset")
		}
		from := len(lab.Recorder.Calls())
		err := user.roll(policyFor(c.node))(t.Context())
		if !c.files {
			requireReset(t, lab, c.node, err)
			lab.requireLeftAlone(from, c.node)
			config, _, _ := configs(t.Context(), c.node)
			lab.applyInsecure(c.node, config) // as the hint says
			err = user.roll(policyFor(c.node))(t.Context())
		}
		must(t, err)
		if diff := cmp.Diff(want, plans); diff != "" {
			t.Errorf("what was planned (-want +got):\n%s", diff)
		}
		requireMembers(t, lab, "", false)
		lab.requireUpgraded(t, c.node)
	})
}

// requireReset checks the error about a reset node.
func requireReset(t *testing.T, lab *Lab, node string, err error) {
	t.Helper()
	requireFault(t, err, fault.Failed, "node "+node, "is in maintenance mode: its machine has no configuration any more, as after talosctl reset",
		"put it as "+node+".yaml into the directory that talos.machineConfigs names",
		"talosctl apply-config --insecure -n "+lab.node(node).Addr.String()+" --file "+node+".yaml")
}

// applyInsecure is talosctl apply-config --insecure.
func (l *Lab) applyInsecure(node string, config []byte) {
	l.t.Helper()
	dialer := l.Lab.Client()
	c, err := client.New(l.t.Context(), client.WithTLSConfig(&tls.Config{InsecureSkipVerify: true}), client.WithEndpoints(l.node(node).Addr.String()), client.WithGRPCDialOptions( //nolint:gosec // as talosctl does
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", addr) })))
	must(l.t, err)
	defer c.Close()
	must(l.t, errOf(c.ApplyConfiguration(l.t.Context(), &machineapi.ApplyConfigurationRequest{Data: config})))
	time.Sleep(3 * time.Minute)
}

// TestResetToNothing: a person has wiped the whole system disk, and the machine boots
// nothing. recast's hint repairs it.
func TestResetToNothing(t *testing.T) {
	long(t)
	inLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, func(t *testing.T, lab *Lab) {
		config := lab.configOf("wk1")
		lab.Patch(everywhere)
		lab.reset("wk1")
		from := len(lab.Recorder.Calls())
		_, err := lab.Client().Roll(t.Context(), policyFor("wk1"))
		hints := strings.Join(fault.Hints(err), "\n")
		say := regexp.MustCompile(`recast publish, then on pve1 qm set 9031 --ide2 (\S+),media=cdrom && qm stop 9031 && qm start 9031; in maintenance mode talosctl apply-config --insecure -n 127.42.7.31 --file wk1.yaml `).FindStringSubmatch(hints)
		if say == nil {
			t.Fatalf("%v\nhints: %s", err, hints)
		}
		if touched := lab.touched(from, "wk1"); len(touched) > 0 {
			t.Errorf("wk1 was touched: %q", touched)
		}
		n := lab.node("wk1")
		must(t, lab.Client().Publish(t.Context()))
		must(t, lab.World.SetConfig("", n.Host, world.ChangeRequest{ID: n.VMID, Set: map[string]string{"ide2": say[1] + ",media=cdrom"}}))
		must(t, lab.World.PowerOff(n.VMID))
		must(t, lab.World.PowerOn(n.VMID))
		time.Sleep(2 * time.Minute)

		_, err = lab.Client().Roll(t.Context(), policyFor("wk1"))
		requireFault(t, err, fault.Failed, "Talos is on none of its disks: talosctl apply-config --insecure -n 127.42.7.31 --file wk1.yaml installs it")
		lab.applyInsecure("wk1", config)
		lab.mustRoll(secondRun, policyFor("wk1"))
		lab.requireUpgraded(t, "wk1")
	})
}
