package observe

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/must"
)

// lockedYAML is a schematic with a lock.
func lockedYAML(hash string) string {
	return "customization:\n    extraKernelArgs:\n        - recast.lock=" + hash + "\n"
}

func knownBuild(lock string, present bool, id, hash, talos string) KnownBuild {
	return KnownBuild{
		Lock: lock, Present: present, Schematic: "default", File: "schematics/base.yaml", ISOSHA256: "9999", Signer: "5555",
		Build: cluster.Build{
			Arch: "amd64",
			ID:   id, TalosVersion: talos, SchematicID: idOf(lockedYAML(hash)), LockHash: hash, Installer: "mirror.example/talos@sha256:1111", ISOName: "recast.iso",
			Extensions: []cluster.LockedExtension{{Name: "tool", Version: "v1", Ref: "ghcr.io/acme/tool", Digest: "sha256:2222"}},
		},
	}
}

// layers is a list of extensions with the schematic's own entry.
func layers(author, yaml string, more ...ExtensionLayer) []ExtensionLayer {
	return append(more, ExtensionLayer{Name: "schematic", Version: idOf(yaml), Author: author, ExtraInfo: yaml})
}

// chain is the links of a provenance, one per line: name, certainty, text, details.
func chain(p Provenance) string {
	var b strings.Builder
	for _, l := range p.Links {
		fmt.Fprintf(&b, "%s %s: %s\n", l.Name, l.Certainty, l.Text)
		for _, d := range l.Details {
			fmt.Fprintf(&b, "  %s\n", d)
		}
	}
	return b.String()
}

const factoryAuthor = "Image Factory (https://factory.talos.dev)"

var (
	tool         = ExtensionLayer{Name: "tool", Version: "v1", Author: "Acme"}
	presentBuild = knownBuild("recast.lock", true, "build-2", "sha256-b", "v1.13.9")
	pastBuild    = knownBuild(".recast/locks/1.lock", false, "build-1", "sha256-a", "v1.13.8")
	booted       = BootClaims{Entry: "talos-v1.13.9.efi", UKI: new(true), Cmdline: true}
)

func withLock(hash string) BootClaims {
	b := booted
	b.Locks = []string{hash}
	return b
}

func claims(talos string, b BootClaims, list ...ExtensionLayer) Claims {
	return Claims{TalosVersion: talos, Arch: "amd64", Platform: "nocloud", Layers: list, Booted: b}
}

// withResource are claims with the resource that Talos 1.14 makes from the schematic's entry.
func withResource(c Claims, schematicID string) Claims {
	c.Factory = &FactoryClaim{SchematicID: schematicID}
	return c
}

type traceCase struct {
	claims Claims
	files  *FileCheck
	unread string
	noLock bool
	origin Origin
	build  string
	has    []string // lines of the chain or of the summary
	but    string   // links that are not as certain as usual
}

// traceCases are what a node says, and how well the chain from it to a lock holds.
var traceCases = map[string]traceCase{
	"what the lock wants": {
		claims: claims("v1.13.9", withLock("sha256-b"), layers(factoryAuthor, lockedYAML("sha256-b"), tool)...), origin: FromLock, build: "build-2",
		has: []string{
			"lock proven: recast.lock wants schematic default (schematics/base.yaml), Talos v1.13.9: build build-2",
			"  extension tool v1: ghcr.io/acme/tool@sha256:2222", "  installer mirror.example/talos@sha256:1111",
			"  its signature was verified, key sha256:5555", "  boot ISO recast.iso sha256:9999",
			"schematic claimed: the image says that it was built by Image Factory at https://factory.talos.dev from schematic " + idOf(lockedYAML("sha256-b")),
			"  the text that it carries makes that ID", "  recast.lock=sha256-b",
			"build claimed: that schematic is build build-2, the one that recast.lock wants",
			"extensions claimed: the node lists 1 extension, by name and version: those of the build", "  tool v1 by Acme",
			"cmdline claimed: the kernel's command line has the same recast.lock",
			"files unknown: the files of its extensions were not compared: --deep does",
			"it claims the build that recast.lock wants", "proven about the node: nothing, all of it is what the image says of itself",
		},
	},
	"what the lock wants, files compared": {
		claims: claims("v1.13.9", withLock("sha256-b"), layers(factoryAuthor, lockedYAML("sha256-b"), tool)...), origin: FromLock, build: "build-2",
		files: &FileCheck{Files: 3, Bytes: 9, NotCompared: []string{"1 files of x"}}, but: "files proven",
		has: []string{
			"files proven: all 3 files of its extensions are those of the images that recast.lock pins by digest", "  not compared: 1 files of x",
			"proven: the bytes of its extensions' files. Not proven, only claimed: Talos itself, its kernel and its arguments",
		},
	},
	"a label that lies": {
		claims: claims("v1.13.9", withLock("sha256-b"), layers(factoryAuthor, lockedYAML("sha256-b"), tool)...), origin: FromLock, build: "build-2",
		files: &FileCheck{Files: 1, Differ: []FileDiff{{Path: "/usr/local/a", Extension: "tool v1", Found: "sha256:aa", Wanted: "sha256:bb"}}, More: 2}, but: "files contradicted",
		has: []string{
			"files contradicted: 3 files of its extensions are not those of the images that recast.lock pins by digest",
			"  /usr/local/a of extension tool v1: sha256:aa → sha256:bb", "  2 more",
			"contradicted: files: what the node shows does not fit together, so that nothing which it says of its image can be relied on",
		},
	},
	"files that can't be read": {
		claims: claims("v1.13.9", withLock("sha256-b"), layers(factoryAuthor, lockedYAML("sha256-b"), tool)...), origin: FromLock, build: "build-2", unread: "not authorized",
		has: []string{"files unknown: the files of its extensions could not be compared: not authorized"},
	},
	"a past lock": {
		claims: claims("v1.13.8", booted, layers("recast", lockedYAML("sha256-a"), tool)...), origin: FromLock, build: "build-1", but: "cmdline contradicted",
		has: []string{
			"schematic claimed: the image says that it was built by recast, with the Talos imager from schematic " + idOf(lockedYAML("sha256-a")),
			"build claimed: that schematic is build build-1 of .recast/locks/1.lock: schematic default, Talos v1.13.8",
			"cmdline contradicted: the schematic has recast.lock, the command line of the unified kernel image that was booted has not",
			"it claims build build-1 of .recast/locks/1.lock, not what recast.lock wants",
		},
	},
	"a past lock, no present one": {
		claims: claims("v1.13.8", withLock("sha256-a"), layers(factoryAuthor, lockedYAML("sha256-a"), tool)...), noLock: true, origin: FromLock, build: "build-1", but: "lock unknown",
		has: []string{"lock unknown: there is no recast.lock that says what the node should run"},
	},
	"GRUB": {
		claims: claims("v1.13.9", BootClaims{UKI: new(false), Cmdline: true}, layers(factoryAuthor, lockedYAML("sha256-b"), tool)...), origin: FromLock, build: "build-2", but: "boot unknown, cmdline unknown",
		has: []string{
			"boot unknown: it does not say which boot entry it was started from: a boot ISO and GRUB have none", "  not from a unified kernel image",
			"cmdline unknown: the kernel's command line has no recast.lock: GRUB drops a schematic's arguments on an upgrade, so that says nothing",
		},
	},
	"other extensions than its build has, and another Talos": {
		claims: claims("v1.13.7", withLock("sha256-c"), layers(factoryAuthor, lockedYAML("sha256-b"), ExtensionLayer{Name: "tool", Version: "v0"}, ExtensionLayer{Name: "modules.dep", Version: "6.18"})...),
		origin: FromLock,
		build:  "build-2", but: "extensions contradicted, talos contradicted, cmdline contradicted",
		has: []string{
			"  extension tool v0 → v1", "  the build that it claims is of Talos v1.13.9 for amd64",
			"cmdline contradicted: the kernel's command line has recast.lock=sha256-c, the schematic sha256-b",
			"contradicted: extensions, talos, cmdline: what the node shows does not fit together, so that nothing which it says of its image can be relied on",
		},
	},
	"a configuration embedded without the build's having one": {
		claims: claims("v1.13.9", withLock("sha256-b"), layers(factoryAuthor, lockedYAML("sha256-b"), tool, ExtensionLayer{Name: "embedded-config", Version: "beef"})...), origin: FromLock, build: "build-2", but: "extensions contradicted",
		has: []string{"  extension embedded-config beef is not in the schematic"},
	},
	"a system that waits for a reboot, Secure Boot": {
		claims: claims("v1.13.9", BootClaims{Entry: "talos-v1.13.9.efi", Next: "talos-v1.13.9~1.efi", SecureBoot: true, UKI: new(true)}, layers(factoryAuthor, lockedYAML("sha256-b"), tool)...), origin: FromLock, build: "build-2", but: "cmdline unknown",
		has: []string{
			"  the next boot starts another system: talos-v1.13.9~1.efi", "  with Secure Boot: the firmware verified the image against its keys",
			"cmdline unknown: the kernel's command line could not be read",
		},
	},
	"an unknown lock": {
		claims: claims("v1.13.9", withLock("sha256-z"), layers(factoryAuthor, lockedYAML("sha256-z"), tool)...), origin: FromOtherLock, but: "build unknown",
		has: []string{
			"build unknown: recast locked that schematic, but no lock at hand made it: the digests of its extensions are unknown",
			"extensions claimed: the node lists 1 extension, by name and version; no digests are known to compare them with",
			"it claims a lock that is not at hand: another machine's .recast, another branch or another project has it",
		},
	},
	"other arguments with the same digests": {
		claims: claims("v1.13.9", withLock("sha256-b"), layers(factoryAuthor, "customization:\n    extraKernelArgs: [quiet, recast.lock=sha256-b ]\n", tool)...), origin: FromOtherLock, but: "build unknown",
		has: []string{"build unknown: no lock at hand has that schematic; one with the same extension digests is build build-2 of recast.lock"},
	},
	"a schematic that is not locked": {
		claims: claims("v1.13.9", booted, layers("Image Factory Enterprise", "customization: {}\n", tool)...), origin: FromSchematic, but: "build unknown",
		has: []string{
			"schematic claimed: the image says that it was built by Image Factory Enterprise from schematic " + idOf("customization: {}\n"),
			"build unknown: recast did not lock that schematic: the digests of its extensions are unknown",
			"  it asks for extensions: acme/tool", "  it asks for kernel arguments: none",
			"cmdline claimed: the kernel's command line has no recast.lock either",
			"it claims someone's schematic, which recast did not lock",
		},
	},
	"a schematic that can't be read": {
		claims: claims("v1.13.9", booted, layers("", "rubbish", tool)...), origin: FromSchematic, but: "build unknown",
		has: []string{"  its text is no schematic that this recast understands", "schematic claimed: the image says that it was built by nobody named from schematic " + idOf("rubbish")},
	},
	"a schematic without its text": {
		claims: claims("v1.13.9", booted, tool, ExtensionLayer{Name: "schematic", Version: "cafe", Author: factoryAuthor}), origin: FromSchematic, but: "build unknown",
		has: []string{"  it does not carry the schematic's text"},
	},
	"a text of another schematic": {
		claims: claims("v1.13.9", booted, ExtensionLayer{Name: "schematic", Version: "cafe", Author: factoryAuthor, ExtraInfo: "customization: {}\n"}), origin: FromNowhere, but: "schematic contradicted, build unknown",
		has: []string{"  the text that it carries makes another ID: " + idOf("customization: {}\n")},
	},
	"Talos 1.14's resource": {
		claims: withResource(claims("v1.13.9", withLock("sha256-b"), layers(factoryAuthor, lockedYAML("sha256-b"), tool)...), "cafe"),
		origin: FromLock, build: "build-2", but: "schematic contradicted",
		has: []string{"schematic contradicted: its list of extensions has schematic " + idOf(lockedYAML("sha256-b")) + ", its resource ImageFactorySchematic cafe"},
	},
	"two schematics": {
		claims: claims("v1.13.9", booted, layers(factoryAuthor, lockedYAML("sha256-b"), layers("recast", lockedYAML("sha256-a"), tool)...)...), origin: FromNowhere, but: "schematic contradicted, build none",
		has: []string{
			"schematic contradicted: the image carries 2 schematics: it was built from another image that had one already",
			"  schematic " + idOf(lockedYAML("sha256-a")) + " by recast, with the Talos imager",
		},
	},
	"a build of the imager": {
		claims: claims("v1.13.9", booted, tool), origin: FromImager, but: "schematic unknown, build none",
		has: []string{
			"schematic unknown: the image carries no schematic: someone built it with the Talos imager, and nothing in it says from what",
			"files unknown: there is nothing to compare the files of its extensions with",
			"it was built by hand with the Talos imager: what from is unknown",
		},
	},
	"a release": {
		claims: claims("v1.13.9", booted), origin: FromRelease, but: "schematic unknown, build none",
		has: []string{"it looks like an image of a Talos release, which nothing in it confirms"},
	},
}

// certain is how certain the links usually are, except for those of but; "none": there is no such link.
func certain(but string) []string {
	links := []string{"lock proven", "schematic claimed", "build claimed", "extensions claimed", "talos claimed", "boot claimed", "cmdline claimed", "files unknown"}
	for other := range strings.SplitSeq(but, ", ") {
		name, _, _ := strings.Cut(other, " ")
		for i, usual := range links {
			if strings.HasPrefix(usual, name+" ") {
				links[i] = other
			}
		}
	}
	return slices.DeleteFunc(links, func(l string) bool { return strings.HasSuffix(l, " none") })
}

func TestTrace(t *testing.T) {
	t.Parallel()
	must.Each(t, traceCases, func(t *testing.T, c traceCase) {
		trail := Trail{Known: []KnownBuild{presentBuild, pastBuild}, Claims: c.claims, Files: c.files, Unread: c.unread, Describe: func(text string) (Described, bool) {
			return Described{Extensions: []string{"acme/tool"}}, text != "rubbish"
		}}
		if !c.noLock {
			trail.Wanted = &presentBuild
		}
		got := Trace(trail)
		must.Equal(t, "origin, build, unread", []any{c.origin, c.build, c.unread}, []any{got.Origin, got.Build, got.Unread})
		links := cluster.Each(got.Links, func(l ProvenanceLink) string { return l.Name + " " + string(l.Certainty) })
		must.Equal(t, "certainty", certain(c.but), links)
		text := "\n" + chain(got) + strings.Join(got.Summary, "\n") + "\n"
		for _, line := range c.has {
			must.Contain(t, "text", text, "\n"+line+"\n")
		}
	})
}

// TestTraceChoosesTheLockThatFits: locks of two Talos versions have the same schematic.
func TestTraceChoosesTheLockThatFits(t *testing.T) {
	t.Parallel()
	older, newer := knownBuild(".recast/locks/1.lock", false, "build-1", "sha256-a", "v1.13.8"), knownBuild("recast.lock", true, "build-2", "sha256-a", "v1.13.9")
	twin := knownBuild(".recast/locks/2.lock", false, "build-2", "sha256-a", "v1.13.9")
	for version, want := range map[string]string{"v1.13.8": older.Lock, "v1.13.9": newer.Lock, "v1.13.7": newer.Lock} {
		trail := Trail{Known: []KnownBuild{older, twin, newer}, Claims: Claims{TalosVersion: version, Layers: layers("x", lockedYAML("sha256-a"))}}
		if got := trail.Claimant(); got == nil || got.Lock != want {
			t.Errorf("Talos %s: %+v, want that of %s", version, got, want)
		}
	}
}

// TestSharedBuild: of a lock that came over the mirror nothing is told that its hashes do not prove.
func TestSharedBuild(t *testing.T) {
	t.Parallel()
	shared := pastBuild
	shared.Shared = true
	c := claims("v1.13.8", withLock("sha256-a"), append(layers(factoryAuthor, lockedYAML("sha256-a")), tool)...)
	got := chain(Trace(Trail{Wanted: &presentBuild, Known: []KnownBuild{presentBuild, shared}, Claims: c}))
	_, node, _ := strings.Cut(got, "schematic ")
	_, node, _ = strings.Cut(node, "\nschematic ")
	if !strings.Contains(node, "a copy in the mirror") || strings.Contains(node, "was verified") || strings.Contains(node, "sha256:1111") || strings.Contains(node, "sha256:9999") {
		t.Error(got)
	}
}
