package simtest

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/schematics"
)

const ownRepository = "127.0.0.1:5000/acme/frr"

// push stores images in the lab's registry and returns their digest.
func push(t *testing.T, lab *Lab, ref string, images v1.ImageIndex) string {
	t.Helper()
	tag := valueOf(name.NewTag(ref))(t)
	must(t, remote.WriteIndex(tag, images, remote.WithContext(t.Context()), remote.WithTransport(lab.Registry.Transport())))
	digest := valueOf(images.Digest())(t)
	return digest.String()
}

// frr is a user's own extension, of that version and content.
func frr(t *testing.T, version, content string) v1.ImageIndex {
	t.Helper()
	index := valueOf(artefact.ExtensionIndex(artefact.Extension{
		Name: "frr", Version: version, Author: "Acme", Files: map[string][]byte{"/usr/local/bin/frr": []byte(content)},
	}))(t)
	return index
}

// TestLockOfOwnExtension: an extension in no list is resolved in its own registry, and the
// lock follows its tag only on request.
func TestLockOfOwnExtension(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		one := push(t, lab, ownRepository+":1.7", frr(t, "1.7.15", "one"))
		lab.Replace("recast.yaml", "images:\n", "images:\n  mirror: 127.0.0.1:5000/acme/talos\n")
		lab.Replace("recast.yaml", "storage: schematics/storage.yaml", "storage: {file: schematics/storage.yaml, extensions: ["+ownRepository+":1.7]}")
		lock := func(o pipeline.LockOptions) (schematics.Extension, pipeline.LockResult) {
			t.Helper()
			res := valueOf(lab.Client().Lock(t.Context(), o))(t)
			list := res.Lock.Schematics["storage"].Extensions
			return list[len(list)-1], res
		}
		locked := func(digest string) schematics.Extension {
			return schematics.Extension{Name: "frr", Version: "1.7.15", Ref: ownRepository, Digest: digest, Explicit: true, Tag: "1.7"}
		}
		got, res := lock(pipeline.LockOptions{})
		diff := cmp.Diff(locked(one), got)
		require(t, diff == "" && res.Written, "at first (-want +got):\n%s", diff)
		two := push(t, lab, ownRepository+":1.7", frr(t, "1.7.15", "two"))
		if got, res := lock(pipeline.LockOptions{}); got.Digest != one || res.Differs {
			t.Errorf("without --update: %+v, differs %t", got, res.Differs)
		}
		got, res = lock(pipeline.LockOptions{Update: true})
		requireSame(t, locked(two), got, "with --update (-want +got)")
		want := []string{"extension frr 1.7.15: " + one + " → " + two}
		if len(res.Changes) != 1 || !cmp.Equal(want, res.Changes[0].Reasons) || !cmp.Equal([]string{"wk1"}, res.Changes[0].Nodes) {
			t.Errorf("changes %+v", res.Changes)
		}

		lab.Replace("recast.yaml", ownRepository+":1.7", ownRepository+":1.7@"+one)
		got, res = lock(pipeline.LockOptions{})
		requireSame(t, locked(one), got, "with its digest (-want +got)")
		if len(res.Warnings) != 1 || res.Warnings[0].Kind != schematics.TagMoved || res.Warnings[0].Locked != one || res.Warnings[0].Found != two {
			t.Errorf("warnings %+v", res.Warnings)
		}
	})
}

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
			requireSame(t, want, d.Reasons, "%s (-want +got)", d.Node)
		}
		const reason = "the images are for arm64, and the machine is amd64: set images.arch to amd64, then recast lock"
		config := lab.Read("recast.yaml")
		for s, refused := range map[cluster.Strategy]string{
			cluster.Auto: "recreate, reimage, in-place: " + reason, cluster.Recreate: reason, cluster.Reimage: reason, cluster.InPlace: reason,
		} {
			strategy(s)(lab)
			before := len(lab.Recorder.Calls())
			rep, err := lab.Client().Roll(t.Context(), policyFor("wk1"))
			diff := cmp.Diff([]string{"wk1: " + refused}, rep.Plan.Refused())
			require(t, diff == "" && fault.KindOf(err) == fault.Refused, "%s: err = %v (-want +got):\n%s", s, err, diff)
			lab.requireNothingSent(before)
			lab.Write("recast.yaml", config)
		}
		requireSame(t, boots, []string{lab.bootID("cp1"), lab.bootID("wk1")}, "boots (-before +after)")
		lab.RequireIntact()
	})
}

// TestImagesForAnotherPlatform: a node changes its platform with its image, by any
// strategy, unless its address comes from the old platform.
func TestImagesForAnotherPlatform(t *testing.T) {
	eachLong(t, oneWorker(), storiesOf(cluster.Recreate, cluster.Reimage, cluster.InPlace), func(t *testing.T, lab *Lab, s cluster.Strategy) {
		strategy(s)(lab)
		whileOff(change("ide0=fast:cloudinit", "ipconfig0=ip=127.42.7.31/24"))(lab)
		lab.lockImages("platform: metal")
		const reason = "the VM's cloud-init drive gives a fixed address (ipconfig0: ip=127.42.7.31/24), which platforms nocloud and metal do not both read: keep platform nocloud (images.platform), or have DHCP give the node its address and remove that"
		requireSame(t, []string{reason}, planOf(t, lab, "wk1").Refused, "with a fixed address (-want +got)")
		whileOff(change("ipconfig0=ip=dhcp"))(lab)
		rep := lab.Client().mustRoll(policyFor("wk1"))
		note := "platform nocloud → metal: network settings that are in neither its machine configuration nor DHCP will be others"
		n := rep.Plan.Work()[0]
		require(t, len(n.Notes) != 0 && n.Notes[0] == note, "notes: %q", n.Notes)
		lab.requireUpgraded(t, "wk1")
		m := lab.machine("wk1")
		require(t, m.Platform == "metal", "it runs platform %s", m.Platform)
	})
}

// requireTrouble requires an error with that code that says which disks are safe.
func requireTrouble(t *testing.T, err error, code fault.Code, safe string) {
	t.Helper()
	requireSame(t, code, fault.CodeOf(err), "code …, of: %v (-want +got)", err)
	got := strings.Join(fault.Safe(err), "\n")
	require(t, strings.Contains(got, safe), "it says that safe is %q, not %q", got, safe)
}

// TestTheLockIsGoneBetweenTwoPlans: a roll has finished another one's work and then can't
// make its own plan: it must not say that nothing was touched.
func TestTheLockIsGoneBetweenTwoPlans(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		lab.rollKilledWhen("wk1/take-down/stop")
		next := lab.second()
		next.Emit = whenStarted("wk1/bring-up/finish", func() { lab.Replace("recast.lock", "", "") })
		_, err := next.Roll(t.Context(), planning.Policy{})
		requireFault(t, err, fault.Config)
		requireTrouble(t, err, fault.LockStale, "wk1: finished, with all their disks")
		lab.RequireIntact()
	})
}
