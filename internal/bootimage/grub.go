package bootimage

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

const (
	grubConfig    = "boot/grub/grub.cfg"
	grubKernel    = "boot/vmlinuz"
	grubInitrd    = "boot/initramfs.xz"
	maxGRUBConfig = 64 << 10
)

// grub is what GRUB boots; nil if the ISO has no GRUB configuration.
func (v *volume) grub() (*GRUB, error) {
	_, ok, err := v.find(grubConfig)
	if err != nil || !ok {
		return nil, err
	}
	file, err := v.open(grubConfig)
	if err != nil {
		return nil, err
	}
	text, err := readAll(file, maxGRUBConfig)
	if err != nil {
		return nil, fmt.Errorf("/%s: %w", grubConfig, err)
	}
	g := &GRUB{}
	if g.Cmdline, err = defaultCmdline(string(text)); err != nil {
		return nil, fmt.Errorf("/%s: %w", grubConfig, err)
	}
	if g.Kernel, err = v.open(grubKernel); err != nil {
		return nil, err
	}
	if g.Initrd, err = v.open(grubInitrd); err != nil {
		return nil, err
	}
	return g, nil
}

// grubSyntax are the characters that let a line be more than one command with plain words.
const grubSyntax = "\\{}&$|;<>\"'`"

// plainCommand are the commands of Talos' grub.cfg whose words have no special meaning to GRUB.
var plainCommand = map[string]bool{"set": true, "insmod": true, "terminal_input": true, "terminal_output": true}

var menuEntry = regexp.MustCompile(`^\s*menuentry "[^"\\$` + "`" + `]*" \{\s*$`)

// defaultCmdline reads the command line of the first menu entry, which Talos'
// grub.cfg makes the default. To GRUB the file is a program; commands that Talos'
// own (pkg/imager/iso/grub.cfg) does not have are refused.
func defaultCmdline(config string) (string, error) {
	var cmdline string
	entries, kernels, initrds, chosen := 0, 0, 0, "0"
	for line := range strings.Lines(config) {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if plainCommand[words[0]] && strings.ContainsAny(line, grubSyntax) || words[0] == "}" && len(words) > 1 {
			return "", fmt.Errorf("more than one command on a line: %.200q", line)
		}
		switch words[0] {
		case "set":
			if v, ok := strings.CutPrefix(strings.Join(words[1:], " "), "default="); ok {
				chosen = v
			}
		case "insmod", "terminal_input", "terminal_output", "}":
		case "menuentry":
			if !menuEntry.MatchString(line) {
				return "", fmt.Errorf("a menu entry with more than its title on the line: %.200q", line)
			}
			entries++
		case "linux":
			if len(words) < 2 || words[1] != "/"+grubKernel {
				return "", fmt.Errorf("it boots another kernel: %.200q", line)
			}
			if entries == 1 {
				kernels++
				text, err := unquote(strings.Join(words[2:], " "))
				if err != nil {
					return "", err
				}
				cmdline = text
			}
		case "initrd":
			if len(words) != 2 || words[1] != "/"+grubInitrd {
				return "", fmt.Errorf("it boots another initramfs: %.200q", line)
			}
			if entries == 1 {
				initrds++
			}
		default:
			return "", fmt.Errorf("the command %.40q is not one of Talos' own", words[0])
		}
	}
	if chosen != "0" || kernels != 1 || initrds != 1 {
		return "", errors.New("the default is not a first entry with one kernel and one initramfs")
	}
	return cmdline, nil
}

// unquote removes Talos' escapes of GRUB's special characters (bootloader/grub/quote.go).
func unquote(s string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\\' && i+1 < len(s):
			i++
		case strings.ContainsRune(`\{}&$|;<>"'`, rune(s[i])):
			return "", fmt.Errorf("%q in a command line is special to GRUB", s[i])
		}
		b.WriteByte(s[i])
	}
	return b.String(), nil
}
