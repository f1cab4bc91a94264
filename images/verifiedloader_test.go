package images

import (
	"bytes"
	"debug/pe"
	"strings"

	"github.com/recast-sh/recast/images/verify"
)

// spoiltLoaders are images with the locked content and another boot loader.
func spoiltLoaders() map[string]spoiltImage {
	const uki, loader = "usr/install/amd64/vmlinuz.efi", "usr/install/amd64/systemd-boot.efi"
	packed := func(change func(files map[string][]byte)) func(*factory) {
		return func(f *factory) { f.packed = change }
	}
	sent := func(change func([]byte) []byte) func(*factory) { return func(f *factory) { f.sent = change } }
	return map[string]spoiltImage{
		"another boot loader in the ISO": {
			sent(func(b []byte) []byte {
				return bytes.Replace(b, []byte("LoaderInfo: systemd-boot"), []byte("LoaderInfo: rootkit-boot"), 1)
			}),
			verify.Bootloader,
			[]string{"fetch-iso: boot ISO: another boot loader than the installer's: systemd-boot "},
		},
		"another boot loader in the installer": {
			packed(func(files map[string][]byte) { files[loader] = append(bytes.Clone(files[loader]), 0) }),
			verify.Bootloader,
			[]string{"fetch-iso: boot ISO: another boot loader than the installer's: systemd-boot "},
		},
		"no boot loader in the installer": {
			packed(func(files map[string][]byte) { delete(files, loader) }),
			verify.Bootloader,
			[]string{"verify-installer: installer: it has no boot loader, /usr/install/amd64/systemd-boot.efi"},
		},
		"another stub in the installer's UKI": {
			packed(func(files map[string][]byte) { files[uki] = flip(files[uki], codeOf(files[uki])) }),
			verify.Bootloader,
			[]string{"fetch-iso: boot ISO: another boot loader than the installer's: systemd-stub in its UKI "},
		},
		"another loader beside the ISO's": {
			sent(func(b []byte) []byte { return renamed(b, "random-seed", "driver1.efi") }),
			verify.Bootloader,
			[]string{"boot ISO: it has unexpected files beside its boot loader: loader/driver1.efi"},
		},
		"another default in the ISO's menu": {
			sent(func(b []byte) []byte { return bytes.Replace(b, []byte("timeout 10"), []byte("default *w"), 1) }),
			verify.Damaged,
			[]string{`loader/loader.conf: "default *w" is not one of Talos' own`},
		},
	}
}

// codeOf is where a UKI's program begins.
func codeOf(uki []byte) int {
	f, err := pe.NewFile(bytes.NewReader(uki))
	if err != nil {
		panic(err)
	}
	return int(f.Section(".text").Offset)
}

// renamed changes the long name of a file in an ISO's FAT32, both of 11 characters.
func renamed(b []byte, from, to string) []byte {
	wide := func(name string) []byte { return []byte(strings.Join(strings.Split(name, ""), "\x00")) }
	b = bytes.Replace(b, wide(from[:5]), wide(to[:5]), 1) // a directory entry has 5 and then 6 of them
	return bytes.Replace(b, wide(from[5:]), wide(to[5:]), 1)
}
