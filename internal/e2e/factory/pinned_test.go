package factory

import "strings"

// guestAgentAt is where the guest agent's program is on a node.
const guestAgentAt = "usr/local/lib/containers/qemu-guest-agent/qemu-ga"

// pin is an official extension with a digest chosen by the user.
type pin struct {
	name, version, digest string
	listed                string // tag in the list of official extensions
	file, sum             string // where its content differs from the listed one's
}

// pins are iscsi-tools from before it was republished under its version, and an older version of the
// guest agent. The first is only in recast.yaml; the schematic's file names the other, too.
func (s *stage) pins(iscsiTools string) []pin {
	s.t.Helper()
	const version = "11.0.1"
	older := guestAgentOf(version).index(s.t)
	s.core.push(s.t, "siderolabs/qemu-guest-agent:"+version, older)
	return []pin{
		{"iscsi-tools", "v0.2.0", iscsiTools, "v0.2.0", patched, checksum(random("iscsid 1 amd64", 120<<10))},
		{"qemu-guest-agent", version, digestOf(s.t, older), guestAgent().version, guestAgentAt, checksum(random("qemu-ga "+version+" amd64", 300<<10))},
	}
}

// references are the pins as in recast.yaml.
func references(pins []pin) string {
	var b strings.Builder
	for _, p := range pins {
		b.WriteString(", 'ghcr.io/siderolabs/" + p.name + "@" + p.digest + "'")
	}
	return b.String()
}

// locksPins requires each pin in a schematic's lock, and no other extension of its name.
func (s *stage) locksPins(schematic string, pins []pin) {
	s.t.Helper()
	for _, p := range pins {
		if e := s.lock().Schematics[schematic].extension(s.t, p.name); e.Version != p.version || e.Digest != p.digest || !e.Explicit {
			s.t.Fatalf("schematic %s is locked to %+v, pinned to %s@%s", schematic, e, p.name, p.digest)
		}
	}
}

// holdsPins requires the pins' content in an installer, which must differ from the listed one's.
func (s *stage) holdsPins(installer string, pins []pin) {
	s.t.Helper()
	for _, p := range pins {
		if listed := s.core.digest(s.t, "siderolabs/"+p.name+":"+p.listed); listed == "" || listed == p.digest {
			s.t.Fatalf("the list has %q of %s, which is pinned to %s: nothing is shown by that", listed, p.name, p.digest)
		}
		if got := built(s.t, installer, s.install, p.file); got != p.sum {
			s.t.Fatalf("%s does not hold /%s of %s@%s", installer, p.file, p.name, p.digest)
		}
		s.notes("zstd, cpio and unsquashfs find /%s of %s@%s", p.file, p.name, p.digest[:19])
	}
}
