package talos

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net/url"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc/codes"

	"github.com/recast-sh/recast/cluster"
)

// loaderEntryFile is the EFI variable with systemd-boot's default entry; nothing
// else shows an installed upgrade that has not been booted yet.
const loaderEntryFile = "/sys/firmware/efi/efivars/LoaderEntryDefault-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"

// readNextBoot leaves the field empty if the machine has no such variable (BIOS, or
// nothing installed yet), or if our talosconfig may not read files.
func readNextBoot(ctx context.Context, s session, m *cluster.Machine) error {
	if s.blank {
		return nil
	}
	b, err := file(ctx, s, loaderEntryFile)
	if e, ok := errors.AsType[*answerError](err); ok {
		switch e.code {
		case codes.NotFound, codes.PermissionDenied, codes.Unimplemented, codes.Unknown: // Unknown: an older Talos reports a missing file so
			return nil
		}
	}
	if err != nil {
		return err
	}
	m.NextBoot = loaderEntry(b)
	return nil
}

// loaderEntry is the text of an EFI variable, lower-case: four bytes of attributes,
// then UTF-16 up to a NUL. It is "" for anything else, including a truncated entry.
func loaderEntry(variable []byte) string {
	if len(variable) < 4 {
		return ""
	}
	var units []uint16
	for pair := variable[4:]; len(pair) >= 2; pair = pair[2:] {
		unit := binary.LittleEndian.Uint16(pair)
		if unit == 0 {
			text := string(utf16.Decode(units))
			if strings.ContainsRune(text, utf8.RuneError) {
				return ""
			}
			return strings.ToLower(text)
		}
		units = append(units, unit)
	}
	return ""
}

const cmdlineFile = "/proc/cmdline"

// readCmdline falls back to the file if Talos does not have the resource.
func readCmdline(ctx context.Context, s session, m *cluster.Machine) error {
	cmdline, found, err := get[*runtime.KernelCmdline](ctx, s, runtime.NewKernelCmdline().Metadata())
	switch {
	case err != nil:
		return err
	case found:
		readArgs(cmdline.TypedSpec().Cmdline, m)
	case !s.blank:
		b, err := file(ctx, s, cmdlineFile)
		if e, ok := errors.AsType[*answerError](err); ok && e.code == codes.PermissionDenied {
			return nil // the role os:reader may not read files
		}
		if err != nil {
			return err
		}
		readArgs(string(bytes.TrimSpace(b)), m)
	}
	return nil
}

func readArgs(cmdline string, m *cluster.Machine) {
	m.Cmdline, m.ConfigArgs = cluster.Secret(cmdline), configArgs(cmdline)
	// Only ISOs have it (pkg/imager/imager.go).
	m.FromISO = slices.Contains(strings.Fields(cmdline), constants.KernelParamHaltIfInstalled+"=1")
}

// configKeys are the kernel arguments from which Talos takes a configuration, or the
// address of a server that provides one (controllers/config/acquire.go).
var configKeys = []string{
	constants.KernelParamConfig, constants.KernelParamConfigInline, constants.KernelParamConfigEarly, constants.KernelParamSideroLink,
}

// configArgs keeps only the server's name of each value: the rest may be a token or the configuration.
func configArgs(cmdline string) []string {
	var out []string
	for arg := range strings.FieldsSeq(cmdline) {
		key, value, _ := strings.Cut(strings.Trim(arg, `"`), "=")
		if !slices.Contains(configKeys, key) || value == "" || value == constants.ConfigNone {
			continue
		}
		shown := key + "="
		if u, err := url.Parse(value); err == nil && u.Scheme != "" && u.Host != "" {
			shown += u.Scheme + "://" + u.Host
		}
		if !slices.Contains(out, shown) {
			out = append(out, shown)
		}
	}
	return out
}
