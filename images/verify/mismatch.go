package verify

import (
	"errors"
	"fmt"

	"github.com/recast-sh/recast/internal/bootimage"
	"github.com/recast-sh/recast/internal/fault"
)

// MismatchKind says in what an image differs from the lock.
type MismatchKind string

// The kinds of mismatch.
const (
	Damaged          MismatchKind = "damaged"           // or in no format that Talos has
	OtherArch        MismatchKind = "other-arch"        // built for another architecture
	OtherTalos       MismatchKind = "other-talos"       // of another Talos version
	ExtensionMissing MismatchKind = "extension-missing" // the lock has it, the image does not
	ExtensionAdded   MismatchKind = "extension-added"   // the image has it, the lock does not
	ExtensionOrder   MismatchKind = "extension-order"   // the right ones in another order
	ExtensionVersion MismatchKind = "extension-version" // of that name, but of another version
	ExtensionContent MismatchKind = "extension-content" // of that name and version, but with other files
	OtherFirmware    MismatchKind = "other-firmware"    // files beside the extensions
	OtherModules     MismatchKind = "other-modules"     // the generated dependencies of kernel modules
	OtherConfig      MismatchKind = "other-config"      // the machine configuration that the image brings, or its META values
	OtherSchematic   MismatchKind = "other-schematic"   // the entry that says what the image was made of
	OtherArgs        MismatchKind = "other-args"        // kernel arguments
	OtherFiles       MismatchKind = "other-files"       // of the installer, where Talos' boot files lie
	Bootloader       MismatchKind = "bootloader"        // what starts an ISO is not what the installer installs
	OtherSigner      MismatchKind = "other-signer"      // signed for Secure Boot by another certificate than the locked one
	OtherBuild       MismatchKind = "other-build"       // ISO and installer differ in kernel or Talos itself
)

// Mismatch is one difference between an image and the lock.
type Mismatch struct {
	Kind MismatchKind
	Text string
}

func (m *Mismatch) Error() string { return m.Text }

// mismatch is a Mismatch with its remedy, of kind Refused.
func mismatch(kind MismatchKind, format string, args ...any) error {
	err := fault.ImageDiffers.Of(fault.As(fault.Refused, &Mismatch{Kind: kind, Text: fmt.Sprintf(format, args...)}))
	if hint := kind.hint(); hint != "" {
		return fault.WithHint(err, "%s", hint)
	}
	return err
}

// unreadable is the error of reading a boot image: Damaged, unless it could not read
// for another reason, such as a full disk.
func unreadable(what string, err error) error {
	if errors.Is(err, bootimage.ErrFormat) {
		return mismatch(Damaged, "%s: %v", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// A factory keeps its list of extensions until it restarts, and serves an installer
// for ever once it is built: see docs/notes/images.md.
const otherContentHint = "the factory built other content under this name, or someone pushed it. Restart the factory, or wait until it has the locked extensions. " +
	"It serves an installer for ever once built: if it is still refused then, " + rebuildHint

// rebuildHint is how to get around what a factory, or a mirror, has under a name.
const rebuildHint = "`recast lock --rebuild SCHEMATIC` builds the same content under another name"

func (k MismatchKind) hint() string {
	switch k {
	case Damaged:
		return "an ISO may have been damaged on the way, an installer is what the registry has: run it again, and if that does not help, " + rebuildHint
	case OtherArch, OtherTalos, OtherSchematic:
		return "it is the image of something else: check images.factory, images.mirror and what answers there"
	case ExtensionOrder:
		return "the order decides which file wins: the builder has read the schematic differently; " + rebuildHint
	case OtherArgs:
		return "if Talos itself brings an argument that this recast does not know, update recast, or name it in the schematic's extraKernelArgs"
	case Bootloader:
		return "nothing else starts on a node before it, and nothing can check what it does: rebuild installer and boot ISO with the same factory, " +
			"and check whether someone pushed other content"
	case OtherSigner:
		return "machines that have enrolled only the locked certificate do not start it: make sure that every replica of the factory signs with that one, " +
			"or that the machines know the new one, then run `recast lock --update`"
	case OtherBuild:
		return "the factory rebuilt one of the two: check whether someone pushed other content; " + rebuildHint
	default:
		return otherContentHint
	}
}
