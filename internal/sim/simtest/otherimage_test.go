package simtest

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/pipeline"
)

// lockImages locks again after a line was added to the configured images.
func (l *Lab) lockImages(line string) {
	l.t.Helper()
	l.Replace("recast.yaml", "images:\n", "images:\n  "+line+"\n")
	must(l.t, errOf(l.Client().Lock(l.t.Context(), pipeline.LockOptions{})))
}

// TestImagesForAnotherArchitecture: every node is stale, and none is taken down for that.
func TestImagesForAnotherArchitecture(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		boots := []string{lab.bootID("cp1"), lab.bootID("wk1")}
		lab.lockImages("arch: arm64")
		want := []cluster.Reason{{Code: "arch", Text: "architecture amd64 → arm64", Old: "amd64", New: "arm64"}}
		for _, d := range requireDrift(t, lab, "cp1", "wk1").Nodes {
			if diff := cmp.Diff(want, d.Reasons); diff != "" {
				t.Errorf("%s (-want +got):\n%s", d.Node, diff)
			}
		}
		const reason = "the images are for arm64, and the machine is amd64: set images.arch to amd64, then recast lock"
		config := lab.Read("recast.yaml")
		for s, refused := range map[cluster.Strategy]string{
			cluster.Auto: "recreate, reimage, in-place: " + reason, cluster.Recreate: reason, cluster.Reimage: reason, cluster.InPlace: reason,
		} {
			strategy(s)(lab)
			before := len(lab.Recorder.Calls())
			rep, err := lab.Client().Roll(t.Context(), policyFor("wk1"))
			if diff := cmp.Diff([]string{"wk1: " + refused}, rep.Plan.Refused()); diff != "" || fault.KindOf(err) != fault.Refused {
				t.Errorf("%s: err = %v (-want +got):\n%s", s, err, diff)
			}
			for _, call := range lab.Recorder.Calls()[before:] {
				if call.Mutation && !ofClaim(call) {
					t.Errorf("%s: a roll sent %s %s %s all the same", s, call.Proto, call.Method, call.Path)
				}
			}
			lab.Write("recast.yaml", config)
		}
		if diff := cmp.Diff(boots, []string{lab.bootID("cp1"), lab.bootID("wk1")}); diff != "" {
			t.Errorf("boots (-before +after):\n%s", diff)
		}
		lab.RequireIntact()
	})
}

// TestImagesForAnotherPlatform: a node changes its platform with its image, by any
// strategy, unless its address comes from the old platform.
func TestImagesForAnotherPlatform(t *testing.T) {
	long(t)
	eachInLab(t, oneWorker(), storiesOf(cluster.Recreate, cluster.Reimage, cluster.InPlace), func(t *testing.T, lab *Lab, s cluster.Strategy) {
		strategy(s)(lab)
		whileOff(change("ide0=fast:cloudinit", "ipconfig0=ip=127.42.7.31/24"))(lab)
		lab.lockImages("platform: metal")
		const reason = "the VM's cloud-init drive gives a fixed address (ipconfig0: ip=127.42.7.31/24), which platforms nocloud and metal do not both read: keep platform nocloud (images.platform), or have DHCP give the node its address and remove that"
		if diff := cmp.Diff([]string{reason}, planOf(t, lab, "wk1").Refused); diff != "" {
			t.Errorf("with a fixed address (-want +got):\n%s", diff)
		}
		whileOff(change("ipconfig0=ip=dhcp"))(lab)
		rep, err := lab.Client().Roll(t.Context(), policyFor("wk1"))
		must(t, err)
		note := "platform nocloud → metal: network settings that are in neither its machine configuration nor DHCP will be others"
		if n := rep.Plan.Work()[0]; len(n.Notes) == 0 || n.Notes[0] != note {
			t.Errorf("notes: %q", n.Notes)
		}
		lab.requireUpgraded(t, "wk1")
		if m := lab.machine("wk1"); m.Platform != "metal" {
			t.Errorf("it runs platform %s", m.Platform)
		}
	})
}
