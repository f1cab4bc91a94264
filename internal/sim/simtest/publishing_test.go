package simtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/factoryapi"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/schematics"
)

// TestPublishAndPrune delivers ISOs to the storage in every way, and removes the one that
// neither the present nor the previous lock needs.
func TestPublishAndPrune(t *testing.T) {
	long(t)
	t.Parallel()
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
		lab.RequireIntact()
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
		n := lab.asked("POST", "/upload")
		require(t, n <= 0, "%d uploads", n)
	})
}

// TestPublishThroughTrouble: an Image Factory takes five minutes for each image, behind a
// proxy with a timeout of one minute that is down at first, and a download breaks.
// Everything is built once, and the user sees what takes so long.
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
		c := lab.Client()
		c.Emit = func(e step.Event) {
			if e.Status == step.Note {
				_, name, _ := strings.Cut(strings.TrimPrefix(e.Path, "build/"), "/")
				notes = append(notes, name+": "+e.Text)
			}
		}
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

// TestSignatureOfTheFactory: the configuration of signatures reaches the code that
// verifies them.
func TestSignatureOfTheFactory(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Replace("recast.yaml", "images:\n", "images:\n  signature: require\n")
		must(t, lab.Client().Publish(t.Context()))
		for name, e := range readLock(t, lab).Schematics {
			require(t, len(e.Signer) == 64 && e.Installer != "" && e.ISO.SHA256 != "",
				"%s: signer %q of %q, %+v", name, e.Signer, e.Installer, e.ISO)
		}
		lab.Write("key.pem", publicKey(t))
		lab.Replace("recast.yaml", "images:\n", "images:\n  signingKey: key.pem\n")
		requireRefused(t, lab.Client().Publish(t.Context()), " is signed, but not by the key ")
	})
}

// TestVerifiedOnce: images in the lock are not opened again.
func TestVerifiedOnce(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		must(t, lab.Client().Publish(t.Context()))
		calls, begun, lock := len(lab.Recorder.Calls()), time.Now(), string(lab.Read("recast.lock"))
		must(t, lab.Client().Publish(t.Context()))
		for _, c := range lab.Recorder.Calls()[calls:] {
			require(t, !c.Mutation && !strings.Contains(c.Path, "/blobs/") && !strings.Contains(c.Path, "/image/"),
				"nothing is to be done, but %s %s", c.Method, c.Path)
		}
		took := time.Since(begun)
		require(t, took <= time.Second, "nothing is to be done, but it took %s", took)
		requireSame(t, lock, string(lab.Read("recast.lock")), "the lock was written (-want +got)")
	})
}

func readLock(t *testing.T, lab *Lab) schematics.Lock {
	t.Helper()
	lock := valueOf(schematics.ReadLock(filepath.Join(lab.Dir, "recast.lock")))(t)
	return lock
}

func publicKey(t *testing.T) []byte {
	t.Helper()
	key := valueOf(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	der := valueOf(x509.MarshalPKIXPublicKey(&key.PublicKey))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

// TestPruneTheMirror mirrors the builds of three locks, and removes those of the first
// with their signatures once they are an hour old: neither the present nor the previous
// lock needs them. The rest is complete: with it a node is rolled, whose machine
// configuration names the copy in the mirror, and which pulls that.
func TestPruneTheMirror(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		const repository = "127.0.0.1:5000/acme/talos"
		lab.Replace("recast.yaml", "images:\n", "images:\n  mirror: "+repository+"\n")
		for range 3 {
			lab.Patch(sim.PatchedExtension)
			must(t, lab.Client().Publish(t.Context()))
		}
		since := 0
		asked := func(method, of string) (list []string) {
			for _, c := range lab.Recorder.Calls()[since:] {
				if c.Method == method && strings.HasPrefix(c.Path, "/v2/acme/talos/"+of) {
					list = append(list, c.Path)
				}
			}
			return list
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
		rep, err = prune()
		must(t, err)
		removed := 0
		for _, v := range rep.Mirror {
			if v.Removed != slices.Contains(deletes(), "/v2/acme/talos/manifests/"+v.Digest) || v.Removed != (len(v.Keep) == 0) {
				t.Errorf("%s: removed is %t, kept by %q", v, v.Removed, v.Keep)
			}
			if v.Removed {
				removed++
			}
		}
		// Of each: the index, its two images, the signature.
		got := len(deletes())
		require(t, removed != 0 && removed != len(rep.Mirror) && got == 4*removed,
			"%d of %d removed by %d requests: %q", removed, len(rep.Mirror), got, deletes())
		before := len(deletes())
		if rep, err = prune(); err != nil || len(deletes()) != before || len(rep.GoingMirror()) != 0 {
			t.Errorf("again: %v, %d more requests, %d go", err, len(deletes())-before, len(rep.GoingMirror()))
		}
		since = len(lab.Recorder.Calls())
		must(t, lab.Client().roll(planning.Policy{})(t.Context()))
		requireInSync(t, lab)
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
	inLab(t, sim.Options{Workers: 1, SignsInstallers: true}, func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		must(t, lab.Client().roll(policyFor("wk1"))(t.Context()))
		requireInSync(t, lab)
		lab.RequireIntact()
	})
}
