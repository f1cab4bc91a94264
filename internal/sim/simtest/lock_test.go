package simtest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/imager"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/factoryapi"
	imagersim "github.com/recast-sh/recast/internal/sim/imager"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/checkup"
	"github.com/recast-sh/recast/schematics"
)

const ownRepository = "127.0.0.1:5000/acme/frr"

// push stores images in the lab's registry and returns their digest.
func push(t *testing.T, lab *Lab, ref string, images v1.ImageIndex) string {
	t.Helper()
	tag := valueOf(name.NewTag(ref))(t)
	must(t, remote.WriteIndex(tag, images, remote.WithContext(t.Context()), remote.WithTransport(lab.Registry.Transport())))
	return valueOf(images.Digest())(t).String()
}

// frr is a user's own extension, of that version and content.
func frr(t *testing.T, version, content string) v1.ImageIndex {
	t.Helper()
	return valueOf(artefact.ExtensionIndex(artefact.Extension{
		Name: "frr", Version: version, Author: "Acme", Files: map[string][]byte{"/usr/local/bin/frr": []byte(content)},
	}))(t)
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
		got, res = lock(pipeline.LockOptions{})
		require(t, got.Digest == one && !res.Differs, "without --update: %+v, differs %t", got, res.Differs)
		got, res = lock(pipeline.LockOptions{Update: true})
		requireSame(t, locked(two), got, "with --update (-want +got)")
		want := []string{"extension frr 1.7.15: " + one + " → " + two}
		require(t, len(res.Changes) == 1 && cmp.Equal(want, res.Changes[0].Reasons) &&
			cmp.Equal([]string{"wk1"}, res.Changes[0].Nodes), "changes %+v", res.Changes)

		lab.Replace("recast.yaml", ownRepository+":1.7", ownRepository+":1.7@"+one)
		got, res = lock(pipeline.LockOptions{})
		requireSame(t, locked(one), got, "with its digest (-want +got)")
		require(t, len(res.Warnings) == 1 && res.Warnings[0].Kind == schematics.TagMoved && res.Warnings[0].Locked == one &&
			res.Warnings[0].Found == two, "warnings %+v", res.Warnings)
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
		boots := lab.boots()
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
			rep, err := lab.Client().Roll(t.Context(), onlyWorker)
			requireSame(t, []string{"wk1: " + refused}, rep.Plan.Refused(), "%s (-want +got)", s)
			requireFault(t, err, fault.Refused)
			lab.requireNothingSent(before)
			lab.Write("recast.yaml", config)
		}
		requireSame(t, boots, lab.boots(), "boots (-before +after)")
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
		const note = "platform nocloud → metal: " +
			"network settings that are in neither its machine configuration nor DHCP will be others"
		notes := lab.Client().mustRoll(onlyWorker).Plan.Work()[0].Notes
		require(t, len(notes) != 0 && notes[0] == note, "notes: %q", notes)
		lab.requireUpgraded(t, "wk1")
		requireSame(t, "metal", lab.machine("wk1").Platform, "platform (-want +got)")
	})
}

// requireTrouble requires an error with that code that says which disks are safe.
func requireTrouble(t *testing.T, err error, code fault.Code, safe string) {
	t.Helper()
	requireSame(t, code, fault.CodeOf(err), "code …, of: %v (-want +got)", err)
	requireSays(t, strings.Join(fault.Safe(err), "\n"), safe)
}

// TestTheLockIsGoneBetweenTwoPlans: a roll has finished another one's work and then can't
// make its own plan: it must not say that nothing was touched.
func TestTheLockIsGoneBetweenTwoPlans(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		lab.rollKilledWhen("wk1/take-down/stop")
		next := lab.second().hears(whenStarted("wk1/bring-up/finish", func() { lab.Replace("recast.lock", "", "") }))
		err := next.roll(planning.Policy{})(t.Context())
		requireFault(t, err, fault.Config)
		requireTrouble(t, err, fault.LockStale, "wk1: finished, with all their disks")
	})
}

// installerBase is an image on which an installer can be built.
func installerBase(t *testing.T) v1.ImageIndex {
	t.Helper()
	img := valueOf(random.Image(512, 1))(t)
	config := valueOf(img.ConfigFile())(t).DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	img = valueOf(mutate.ConfigFile(img, config))(t)
	return mutate.AppendManifests(empty.Index, mutate.IndexAddendum{
		Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}},
	})
}

// imagerBuilds has the imager build one schematic, storage. runs is what it has built.
func imagerBuilds(t *testing.T, lab *Lab, talos string) (client *Client, runs *[]string) {
	t.Helper()
	push(t, lab, ownRepository+":1.7.15", frr(t, "1.7.15", "frr"))
	push(t, lab, "127.0.0.1:5000/siderolabs/installer-base:"+talos, installerBase(t))
	lab.Replace("recast.yaml", "images:\n", "images:\n  mirror: 127.0.0.1:5000/acme/talos\n")
	lab.Replace("recast.yaml", "storage: schematics/storage.yaml", `storage: {file: schematics/storage.yaml, extensions: ["`+ownRepository+`:1.7.15"]}`)
	client, runs = lab.Client(), new([]string)
	// A process can't run in a bubble: the lab's imager is called directly.
	client.Imager = valueOf(imager.New(imager.Options{
		Command: []string{"imager", "{out}"},
		Run: func(_ context.Context, args []string, profile []byte) error {
			return imagersim.Build(profile, args[1], func(kind string, _ *artefact.Image) { *runs = append(*runs, kind) })
		},
	}))(t)
	must(t, errOf(client.Lock(t.Context(), pipeline.LockOptions{})))
	return client, runs
}

// TestPreparedByImager: the imager makes the disk image of a schematic, too, from which a system disk is prepared. The imager
// of an older Talos can't: with auto the node boots the ISO, with disk it is refused.
func TestPreparedByImager(t *testing.T) {
	type story struct {
		talos, boot, refused string
		doctor               checkup.State
	}
	const old = "before Talos v1.13 the imager needs loop devices for one, and recast gives it none"
	eachIn(t, func(s story) sim.Options { return sim.Options{Workers: 1, TalosVersion: s.talos} }, map[string]story{
		"a disk":            {sim.TalosVersion, "disk", "", checkup.OK},
		"auto":              {sim.TalosVersion, "auto", "", checkup.OK},
		"an older Talos":    {talos12, "disk", old, checkup.Problem},
		"older, by the ISO": {talos12, "auto", old, checkup.Warning},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.BootsDisks(s.boot)
		client, runs := imagerBuilds(t, lab, s.talos)
		checks := diagnosis(t, client).Checks
		i := slices.IndexFunc(checks, func(c checkup.Check) bool { return c.What == "disk image of storage on local" })
		require(t, i >= 0 && checks[i].State == s.doctor && strings.Contains(checks[i].Seen, s.refused),
			"doctor: %+v", checks)
		before := lab.Disks()
		rep, err := client.Roll(t.Context(), onlyWorker)
		if s.doctor == checkup.Problem {
			requireFault(t, err, fault.Refused, "no disk image of schematic storage is made: "+s.refused)
			return
		}
		must(t, err)
		want := []string{imagersim.Installer, imagersim.ISO}
		if s.refused == "" {
			want = append(want, imagersim.Disk)
		}
		requireSame(t, want, *runs, "what the imager built (-want +got)")
		n, e := rep.Plan.Nodes[0], readLock(t, lab).Schematics["storage"]
		require(t, n.Prepared == e.Disk.Name && (n.Prepared == "") == (s.refused != ""),
			"prepared from %q, the lock has %+v", n.Prepared, e.Disk)
		requireSays(t, strings.Join(n.Notes, "; "), s.refused)
		lab.requireRolledFrom(t, before)
	})
}

// TestRollWhatTheImagerBuilt: for one lock the factory builds one schematic and the imager
// the other. The provenance of a node with the imager's build is complete.
func TestRollWhatTheImagerBuilt(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		client, runs := imagerBuilds(t, lab, sim.TalosVersion)
		client.rollTo(t, planning.Policy{})
		require(t, len(*runs) == 2, "the imager built %q", *runs)
		for name, e := range readLock(t, lab).Schematics {
			require(t, strings.HasPrefix(e.Installer, "127.0.0.1:5000/acme/talos@") && e.ISO.SHA256 != "" &&
				(e.Signer == "") == (name == "storage"), "%s: installer %s, signer %q, ISO %+v", name, e.Installer, e.Signer, e.ISO)
		}
		p := valueOf(lab.Client().Provenance(t.Context(), "wk1"))(t)
		require(t, p.Origin == observe.FromLock && p.Build == p.Wanted && !p.Contradicted(), "provenance: %+v", p)
		requireNone(t, valueOf(os.ReadDir(filepath.Join(lab.Dir, ".recast", "cache", "imager")))(t), "left")
	})
}

// TestPublishAndPrune delivers ISOs to the storage in every way, and removes the one that
// neither the present nor the previous lock needs.
func TestPublishAndPrune(t *testing.T) {
	long(t)
	eachInLab(t, oneWorker(), storiesOf("upload", "download-url"), func(t *testing.T, lab *Lab, delivery string) {
		lab.Replace("recast.yaml", "iso: {storage", "iso: {delivery: "+delivery+", storage")
		lab.World.AddRole("Publishes", "Sys.AccessNetwork", "Datastore.Allocate")
		for _, who := range lab.World.ACLs() {
			lab.World.Grant(world.ACL{Path: "/", Who: who.Who, Role: "Publishes", Propagate: true})
		}
		for range 3 { // the previous lock is for rollback and stays
			lab.Patch(sim.PatchedExtension)
			must(t, lab.Client().Publish(t.Context()))
		}
		require(t, lab.asked("POST", "/"+delivery) != 0, "nothing was published by %s", delivery)
		rep := valueOf(lab.Client().prune(t.Context(), pipeline.PruneOptions{}))(t)
		removed := 0
		for _, v := range rep.ISOs {
			if v.Removed {
				removed++
			}
		}
		deletes := lab.asked("DELETE", "/content/")
		require(t, removed != 0 && removed == deletes, "%d removed by %d requests: %q", removed, deletes, rep.ISOs)
	})
}

// asked counts the requests to Proxmox with that method and with part in their path.
func (l *Lab) asked(method, part string) int {
	return len(l.sent(0, func(c record.Call) bool {
		return c.Proto == "proxmox" && c.Method == method && strings.Contains(c.Path, part)
	}))
}

// TestPublishWithoutThePrivilege: Proxmox would receive the whole upload first.
func TestPublishWithoutThePrivilege(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.World.AddRole("Recast", slices.DeleteFunc(sim.Privileges(), func(p string) bool { return p == "Datastore.AllocateTemplate" })...)
		requireRefused(t, lab.Client().Publish(t.Context()), "lacks privileges: Datastore.AllocateTemplate on /storage/isos")
		requireSame(t, 0, lab.asked("POST", "/upload"), "uploads (-want +got)")
	})
}

// TestPublishThroughTrouble: an Image Factory takes five minutes for each image, behind a proxy with a timeout of one
// minute that is down at first, and a download breaks. Everything is built once, and the user sees what takes so long.
func TestPublishThroughTrouble(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		before := len(lab.Factory.Built())
		lab.Factory.Slow(5 * time.Minute)
		lab.Factory.Strike(1, "/schematics", factoryapi.Down(502, 0))
		lab.Factory.Strike(1, "/v2/", factoryapi.Down(503, 7*time.Second))
		lab.Factory.Strike(1, "/image/", factoryapi.CutByStore(5000))
		for _, images := range []string{"/v2/", "/image/"} {
			lab.Factory.Strike(100, images, lab.Factory.Impatient(time.Minute))
		}

		var notes []string
		c := lab.Client().hears(func(e step.Event) {
			if e.Status == step.Note {
				_, name, _ := strings.Cut(strings.TrimPrefix(e.Path, "build/"), "/")
				notes = append(notes, name+": "+e.Text)
			}
		})
		must(t, c.Publish(t.Context()))
		const patience = "the factory answered 504 Gateway Timeout; the factory is still building, asking again in 10s"
		for _, want := range []string{
			"resolve-installer: the factory answered 503 Service Unavailable, trying again in 7s (2 of 5)",
			"resolve-installer: " + patience,
			"resolve-installer: the factory is building the installer, 4m30s",
			"fetch-iso: " + patience,
			"fetch-iso: the factory is building the ISO, 1m0s",
			"fetch-iso: the download broke off after 0 MiB (unexpected EOF), beginning again in 1s (2 of 5)",
		} {
			require(t, slices.Contains(notes, want), "not told: %s\n%s", want, strings.Join(notes, "\n"))
		}
		built := lab.Factory.Built()
		once := slices.Compact(slices.Sorted(slices.Values(built)))
		require(t, len(built) != before && len(once) == len(built), "built: %q, %d of them before", built, before)
	})
}

// TestSignatureOfTheFactory: the configuration of signatures reaches the code that verifies them.
func TestSignatureOfTheFactory(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Replace("recast.yaml", "images:\n", "images:\n  signature: require\n")
		must(t, lab.Client().Publish(t.Context()))
		for name, e := range readLock(t, lab).Schematics {
			require(t, len(e.Signer) == 64 && e.Installer != "" && e.ISO.SHA256 != "",
				"%s: signer %q of %q, %+v", name, e.Signer, e.Installer, e.ISO)
		}
		another := valueOf(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
		der := valueOf(x509.MarshalPKIXPublicKey(&another.PublicKey))(t)
		lab.Write("key.pem", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
		lab.Replace("recast.yaml", "images:\n", "images:\n  signingKey: key.pem\n")
		requireRefused(t, lab.Client().Publish(t.Context()), " is signed, but not by the key ")
	})
}

func readLock(t testing.TB, lab *Lab) schematics.Lock {
	t.Helper()
	return valueOf(schematics.ReadLock(filepath.Join(lab.Dir, "recast.lock")))(t)
}

// TestPruneTheMirror mirrors the builds of three locks, and removes those of the first with their signatures once they
// are an hour old: neither the present nor the previous lock needs them. The rest is complete: with it a node is
// rolled, whose machine configuration names the copy in the mirror, and which pulls that.
func TestPruneTheMirror(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		const repository = "127.0.0.1:5000/acme/talos"
		lab.Replace("recast.yaml", "images:\n", "images:\n  mirror: "+repository+"\n")
		for range 3 {
			lab.Patch(sim.PatchedExtension)
			must(t, lab.Client().Publish(t.Context()))
		}
		since := 0
		asked := func(method, of string) []string {
			is := func(c record.Call) bool { return c.Method == method && strings.HasPrefix(c.Path, "/v2/acme/talos/"+of) }
			return ofEach(lab.sent(since, is), func(c record.Call) string { return c.Path })
		}
		deletes := func() []string { return asked("DELETE", "manifests/") }
		prune := func() (pipeline.PruneReport, error) {
			return lab.Client().prune(t.Context(), pipeline.PruneOptions{Only: pipeline.PruneMirror, OlderThan: time.Hour})
		}
		rep, err := prune()
		require(t, err == nil && len(rep.Mirror) != 0 && len(rep.GoingMirror()) == 0,
			"at once: %v, %d of %d go", err, len(rep.GoingMirror()), len(rep.Mirror))
		for _, v := range rep.Mirror {
			require(t, slices.Contains(v.Keep, "it was built less than 1h ago") && time.Since(v.Built) <= time.Hour,
				"%s, built at %s, is kept by %q", v, v.Built, v.Keep)
		}
		time.Sleep(time.Hour)
		rep = valueOf(prune())(t)
		removed := 0
		for _, v := range rep.Mirror {
			require(t, v.Removed == slices.Contains(deletes(), "/v2/acme/talos/manifests/"+v.Digest) &&
				v.Removed == (len(v.Keep) == 0), "%s: removed is %t, kept by %q", v, v.Removed, v.Keep)
			if v.Removed {
				removed++
			}
		}
		// Of each: the index, its two images, the signature.
		got := len(deletes())
		require(t, removed != 0 && removed != len(rep.Mirror) && got == 4*removed,
			"%d of %d removed by %d requests: %q", removed, len(rep.Mirror), got, deletes())
		before := len(deletes())
		going := valueOf(prune())(t).GoingMirror()
		require(t, len(deletes()) == before && len(going) == 0, "again: %q, %d before; %d go", deletes(), before, len(going))
		since = len(lab.Recorder.Calls())
		lab.Client().rollTo(t, planning.Policy{})
		installer := readLock(t, lab).Schematics["storage"].Installer
		_, digest, _ := strings.Cut(installer, "@")
		require(t, installer == repository+"@"+digest, "the lock names %s", installer)
		// A roll itself reads no blob of the copy.
		require(t, len(asked("GET", "manifests/"+digest)) != 0 && len(asked("GET", "blobs/")) != 0,
			"no manifest or no blob was pulled from the mirror")
	})
}

// TestSignedInstallers: an Image Factory signs boot loader and UKI of ordinary installers, and not those of its ISOs.
// What it builds is of the lock, and is rolled.
func TestSignedInstallers(t *testing.T) {
	long(t)
	inLab(t, sim.Options{Workers: 1, SignsInstallers: true}, func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		lab.Client().rollTo(t, policyFor("wk1"))
	})
}
