package observe

import (
	"fmt"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/words"
)

// lockLink says what recast.lock wants. It is recomputed from the file at each reading.
func (t Trail) lockLink() ProvenanceLink {
	w := t.Wanted
	if w == nil {
		return ProvenanceLink{Name: "lock", Certainty: Unknown, Text: "there is no recast.lock that says what the node should run"}
	}
	l := ProvenanceLink{Name: "lock", Certainty: Proven, Text: fmt.Sprintf("%s wants schematic %s (%s), Talos %s: build %s", w.Lock, w.Schematic, w.File, w.Build.TalosVersion, w.Build.ID)}
	l.Details = append(l.Details, "schematic ID "+w.Build.SchematicID, cluster.LockArg+w.Build.LockHash)
	return l.with(w)
}

// with adds what a lock pins for a build.
func (l ProvenanceLink) with(b *KnownBuild) ProvenanceLink {
	for _, e := range b.Build.Extensions {
		l.Details = append(l.Details, fmt.Sprintf("extension %s: %s@%s", e.Title(), e.Ref, e.Digest))
	}
	if b.Shared {
		return l.and("a copy in the mirror: what its installer is, and whether that is signed, nothing here proves")
	}
	if b.Build.Installer == "" {
		return l.and("installer: none was built")
	}
	l = l.and("installer " + b.Build.Installer)
	if b.Signer != "" {
		l = l.and("its signature was verified, key sha256:" + b.Signer)
	} else {
		l = l.and("its signature was not verified")
	}
	if b.ISOSHA256 != "" {
		l = l.and("boot ISO " + b.Build.ISOName + " sha256:" + b.ISOSHA256)
	}
	return l
}

func (l ProvenanceLink) and(detail string) ProvenanceLink {
	l.Details = append(l.Details, detail)
	return l
}

// schematicLinks follow the node's schematic to a lock.
func (j judged) schematicLinks() []ProvenanceLink {
	switch {
	case len(j.entries) > 1:
		l := ProvenanceLink{Name: "schematic", Certainty: Contradicted, Text: fmt.Sprintf("the image carries %d schematics: it was built from another image that had one already", len(j.entries))}
		for _, e := range j.entries {
			l = l.and(fmt.Sprintf("schematic %s by %s", e.Version, builder(e.Author)))
		}
		return []ProvenanceLink{l}
	case j.origin == FromImager:
		return []ProvenanceLink{{Name: "schematic", Certainty: Unknown, Text: "the image carries no schematic: someone built it with the Talos imager, and nothing in it says from what"}}
	case j.origin == FromRelease:
		return []ProvenanceLink{{Name: "schematic", Certainty: Unknown, Text: "the image carries neither a schematic nor extensions, as Talos' own releases do"}}
	}
	return []ProvenanceLink{j.entryLink(), j.knownLink()}
}

func (j judged) entryLink() ProvenanceLink {
	e := j.entries[0]
	l := ProvenanceLink{Name: "schematic", Certainty: Claimed, Text: fmt.Sprintf("the image says that it was built by %s from schematic %s", builder(e.Author), e.Version)}
	if f := j.Claims.Factory; f != nil && f.SchematicID != e.Version {
		return ProvenanceLink{Name: "schematic", Certainty: Contradicted, Text: fmt.Sprintf("its list of extensions has schematic %s, its resource ImageFactorySchematic %s", e.Version, f.SchematicID)}
	}
	switch {
	case e.ExtraInfo == "":
		l = l.and("it does not carry the schematic's text")
	case idOf(e.ExtraInfo) != e.Version:
		l.Certainty = Contradicted
		l = l.and("the text that it carries makes another ID: " + idOf(e.ExtraInfo))
	default:
		l = l.and("the text that it carries makes that ID")
	}
	if j.lock != "" {
		l = l.and(cluster.LockArg + j.lock)
	}
	return l
}

// knownLink says which lock made the schematic.
func (j judged) knownLink() ProvenanceLink {
	const name = "build"
	switch {
	case j.known != nil && j.Wanted != nil && j.known.Build.ID == j.Wanted.Build.ID:
		return ProvenanceLink{Name: name, Certainty: Claimed, Text: fmt.Sprintf("that schematic is build %s, the one that %s wants", words.Short(j.known.Build.ID), j.Wanted.Lock)}
	case j.known != nil:
		l := ProvenanceLink{Name: name, Certainty: Claimed, Text: fmt.Sprintf("that schematic is build %s of %s: schematic %s, Talos %s", j.known.Build.ID, j.known.Lock, j.known.Schematic, j.known.Build.TalosVersion)}
		return l.with(j.known)
	case j.kin != nil:
		return ProvenanceLink{Name: name, Certainty: Unknown, Text: fmt.Sprintf("no lock at hand has that schematic; one with the same extension digests is build %s of %s", j.kin.Build.ID, j.kin.Lock)}
	case j.lock != "":
		return ProvenanceLink{Name: name, Certainty: Unknown, Text: "recast locked that schematic, but no lock at hand made it: the digests of its extensions are unknown"}
	}
	l := ProvenanceLink{Name: name, Certainty: Unknown, Text: "recast did not lock that schematic: the digests of its extensions are unknown"}
	if j.entries[0].ExtraInfo == "" {
		return l
	}
	d, ok := j.Describe(j.entries[0].ExtraInfo)
	if !ok {
		return l.and("its text is no schematic that this recast understands")
	}
	return l.and("it asks for extensions: " + orNone(d.Extensions)).and("it asks for kernel arguments: " + orNone(d.Args))
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}

// extensionsLink compares the node's list of extensions with that of the build that it claims.
func (j judged) extensionsLink() ProvenanceLink {
	l := ProvenanceLink{Name: "extensions", Certainty: Claimed}
	var m cluster.RunningSystem
	for _, e := range j.Claims.Layers {
		if e.Name == schematicEntry || e.Name == modulesEntry {
			continue
		}
		m.Extensions = append(m.Extensions, cluster.ExtensionEntry{Name: e.Name, Version: e.Version})
		author := ""
		if e.Author != "" {
			author = " by " + e.Author
		}
		l = l.and(strings.TrimSpace(e.Name+" "+e.Version) + author)
	}
	l.Text = fmt.Sprintf("the node lists %s, by name and version", words.Counted(len(m.Extensions), "extension"))
	if j.known == nil {
		l.Text += "; no digests are known to compare them with"
		return l
	}
	differ := cluster.DiffExtensions(j.known.Build, m)
	if len(differ) == 0 {
		l.Text += ": those of the build"
		return l
	}
	l.Certainty = Contradicted
	l.Text += ": not those of the build that it claims"
	for _, r := range differ {
		l = l.and(r.Text)
	}
	return l
}

func (j judged) talosLink() ProvenanceLink {
	l := ProvenanceLink{Name: "talos", Certainty: Claimed, Text: fmt.Sprintf("the node says that it runs Talos %s for %s on platform %s", j.Claims.TalosVersion, j.Claims.Arch, j.Claims.Platform)}
	if j.known == nil {
		return l
	}
	if talos, arch := j.known.Build.TalosVersion, j.known.Build.Arch; talos != j.Claims.TalosVersion || arch != j.Claims.Arch {
		l.Certainty = Contradicted
		return l.and("the build that it claims is of Talos " + talos + " for " + arch)
	}
	return l
}

// bootLinks returns the links of the boot entry and of the kernel's command line.
func (j judged) bootLinks() []ProvenanceLink {
	b := j.Claims.Booted
	boot := ProvenanceLink{Name: "boot", Certainty: Claimed, Text: "it booted " + b.Entry}
	switch {
	case b.Entry != "" && b.Next != "" && b.Next != b.Entry:
		boot = boot.and("the next boot starts another system: " + b.Next)
	case b.Entry == "":
		boot.Certainty, boot.Text = Unknown, "it does not say which boot entry it was started from: a boot ISO and GRUB have none"
	}
	switch {
	case b.SecureBoot:
		boot = boot.and("with Secure Boot: the firmware verified the image against its keys")
	case b.UKI != nil && *b.UKI:
		boot = boot.and("from a unified kernel image, without Secure Boot: it was not verified")
	case b.UKI != nil:
		boot = boot.and("not from a unified kernel image")
	}
	return []ProvenanceLink{boot, j.cmdlineLink()}
}

func (j judged) cmdlineLink() ProvenanceLink {
	b := j.Claims.Booted
	l := ProvenanceLink{Name: "cmdline", Certainty: Claimed}
	switch {
	case !b.Cmdline:
		l.Certainty, l.Text = Unknown, "the kernel's command line could not be read"
	case len(b.Locks) == 0 && j.lock == "":
		l.Text = "the kernel's command line has no recast.lock either"
	case len(b.Locks) == 0:
		l.Certainty, l.Text = Unknown, "the kernel's command line has no recast.lock: GRUB drops a schematic's arguments on an upgrade, so that says nothing"
		if b.UKI != nil && *b.UKI {
			l.Certainty, l.Text = Contradicted, "the schematic has recast.lock, the command line of the unified kernel image that was booted has not"
		}
	case len(b.Locks) == 1 && b.Locks[0] == j.lock:
		l.Text = "the kernel's command line has the same recast.lock"
	default:
		l.Certainty, l.Text = Contradicted, fmt.Sprintf("the kernel's command line has %s%s, the schematic %s", cluster.LockArg, strings.Join(b.Locks, " and "), words.OrNone(j.lock))
	}
	return l
}

// filesLink returns the only link that no label can forge.
func (j judged) filesLink() ProvenanceLink {
	l := ProvenanceLink{Name: "files", Certainty: Unknown}
	switch {
	case j.Unread != "":
		l.Text = "the files of its extensions could not be compared: " + j.Unread
	case j.known == nil:
		l.Text = "there is nothing to compare the files of its extensions with"
	case j.Files == nil:
		l.Text = "the files of its extensions were not compared: --deep does"
	case len(j.known.Build.Extensions) == 0 && j.Files.Same():
		l.Certainty, l.Text = Proven, "it has no files of any extension, as its build"
	case j.Files.Same():
		l.Certainty, l.Text = Proven, fmt.Sprintf("all %d files of its extensions are those of the images that %s pins by digest", j.Files.Files, j.known.Lock)
		if j.Files.Files == 1 {
			l.Text = fmt.Sprintf("the one file of its extensions is that of the image that %s pins by digest", j.known.Lock)
		}
	default:
		l.Certainty, l.Text = Contradicted, fmt.Sprintf("%d files of its extensions are not those of the images that %s pins by digest", len(j.Files.Differ)+j.Files.More, j.known.Lock)
		if len(j.Files.Differ)+j.Files.More == 1 {
			l.Text = fmt.Sprintf("1 file of its extensions is not that of the images that %s pins by digest", j.known.Lock)
		}
	}
	if j.Files != nil {
		for _, d := range j.Files.Differ {
			l = l.and(d.String())
		}
		if j.Files.More > 0 {
			l = l.and(fmt.Sprintf("%d more", j.Files.More))
		}
		for _, text := range j.Files.NotCompared {
			l = l.and("not compared: " + text)
		}
	}
	return l
}
