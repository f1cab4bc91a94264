#!/bin/sh
# Makes the files beside it, with the programs and options that imager uses
# (pkg/imager/iso, pkg/imager/extensions, internal/pkg/extensions of Talos v1.14.1),
# around content of a few bytes: testdata/bootimages/make.sh DIRECTORY
set -eu
PATH=$PATH:/usr/sbin
out=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export SOURCE_DATE_EPOCH=1700000000 TZ=UTC

archive() { cpio -H newc --create --reproducible --quiet -R +0:+0; }

# Talos' own part
mkdir base
echo init > base/init
touch -d @1700000000 base/init base
(cd base && find . | LC_ALL=C sort | archive) > base.cpio
zstd -q -T0 -18 -c base.cpio > base.zst
xz -C crc32 -0 -e -T 0 -z -c base.cpio > base.xz
sha256sum base.zst base.xz > "$out/base.sha256"

# two extensions
mkdir -p ext/usr/local/bin ext/usr/local/etc ext/usr/local/lib/many ext/usr/local/share/empty
echo tool > ext/usr/local/bin/tool
chmod 4755 ext/usr/local/bin/tool
ln ext/usr/local/bin/tool ext/usr/local/bin/hardlink
ln -s ../bin/tool ext/usr/local/lib/symlink
yes "a line of a large file" | head -c 400000 > ext/usr/local/lib/large
truncate -s 300000 ext/usr/local/lib/hole
echo end >> ext/usr/local/lib/hole
: > ext/usr/local/share/none
for n in $(seq 1 300); do echo "$n" > "ext/usr/local/lib/many/a-file-with-a-rather-long-name-$n"; done
mkdir -p schematic/usr/local/share/schematic
: > schematic/usr/local/share/schematic/ce4c
find . -exec touch -h -d @1700000000 {} +

squash() { mksquashfs "$1" "$2" -all-root -noappend -no-progress -quiet $3; }

config() {
	cat <<YAML
layers:
    - image: 0.sqsh
      metadata:
        name: tools
        version: v1.0.0
        author: Somebody
        description: |
            Several lines.
        compatibility:
            talos:
                version: '>= v1.5.0'
    - image: 1.sqsh
      metadata:
        name: schematic
        version: ce4c
        author: Image Factory (http://127.0.0.1)
        description: Virtual extension which specifies the schematic of the image built with Image Factory.
        compatibility:
            talos:
                version: '>= 1.0.0'
        extraInfo: |
            customization: {}
YAML
}

# initramfs KIND BASE COMPRESSOR: the microcode, Talos' own part and the added one
initramfs() {
	rm -rf add early
	mkdir -p add/usr/lib/firmware/i915 early/kernel/x86/microcode
	squash ext add/0.sqsh "$4"
	squash schematic add/1.sqsh "$4"
	config > add/extensions.yaml
	echo firmware > add/usr/lib/firmware/i915/dmc.bin
	ln add/usr/lib/firmware/i915/dmc.bin add/usr/lib/firmware/i915/same.bin
	ln -s dmc.bin add/usr/lib/firmware/i915/link.bin
	echo microcode > early/kernel/x86/microcode/GenuineIntel.bin
	find add early -exec touch -h -d @1700000000 {} +
	(cd early && find . -mindepth 1 | LC_ALL=C sort | archive) > "$1"
	cat "$2" >> "$1"
	(cd add && find . -mindepth 1 | LC_ALL=C sort | archive) | $3 >> "$1"
}
initramfs initramfs.zst base.zst 'zstd -T0 -18 -c --quiet' '-comp zstd -Xcompression-level 18'
initramfs initramfs.xz base.xz 'xz -C crc32 -0 -e -T 0 -z --quiet' '-comp xz -Xdict-size 100%'
initramfs initramfs.gz base.zst 'gzip -9 -n' '-comp gzip'
cp initramfs.zst initramfs.xz initramfs.gz "$out"

# extended attributes, which only root may set
if [ "$(id -u)" = 0 ]; then
	mkdir -p xattr/usr/local/bin
	for a in selinux=security.selinux capability=security.capability overlay=trusted.overlay.opaque; do
		rm -f xattr/usr/local/bin/tool
		echo x > xattr/usr/local/bin/tool
		touch -d @1700000000 xattr/usr/local/bin/tool
		value=y # the kernel validates a capability: version 2, CAP_NET_ADMIN
		if [ "${a%%=*}" = capability ]; then value='\1\0\0\2\0\20\0\0\0\0\0\0\0\0\0\0\0\0\0\0'; fi
		printf "$value" | python3 -c 'import os, sys; os.setxattr("xattr/usr/local/bin/tool", sys.argv[1], sys.stdin.buffer.read())' "${a#*=}"
		squash xattr "$out/${a%%=*}.sqsh" '-nopad -comp zstd'
	done
fi

# a UKI around a stub that returns at once
printf '.text\n.globl _start\n_start: ret\n' > stub.s
as stub.s -o stub.o
ld -m i386pep --subsystem 10 --no-insert-timestamp -e _start -s stub.o -o stub.efi
printf 'NAME="Talos"\nID=talos\nVERSION_ID=v1.13.9\n' > osrel
printf 'talos.platform=metal console=ttyS0 quote=$x{y}' > cmdline
printf '6.18.0-talos' > uname
printf 'kernel of Linux\n' > vmlinuz
args='' at=0x140200000
for s in osrel:osrel cmdline:cmdline uname:uname linux:vmlinuz initrd:initramfs.zst; do
	args="$args --add-section .${s%%:*}=${s#*:} --change-section-vma .${s%%:*}=$at"
	at=$(printf '0x%x' $((at + 0x100000)))
done
objcopy --remove-section=.idata $args stub.efi uki.efi

esp() {
	truncate -s 40M efiboot.img
	mkfs.vfat -F 32 -n EFI --invariant -s 1 efiboot.img > /dev/null
	mcopy -s -p -Q -m -i efiboot.img "$1"/* ::
	if [ -f "$1/loader/random-seed" ]; then mattrib -i efiboot.img +r ::/loader/random-seed; fi
}
mkdir -p uefi/EFI/Linux uefi/EFI/BOOT uefi/loader
cp stub.efi uefi/EFI/BOOT/BOOTX64.EFI
cp uki.efi uefi/EFI/Linux/Talos-v1.13.9.efi
echo 'timeout 10' > uefi/loader/loader.conf
head -c 32 /dev/zero > uefi/loader/random-seed
find uefi -exec touch -h -d @1700000000 {} +
esp uefi
dates='-volume_date all_file_dates =1700000000 -volume_date uuid 2023111422132000'
iso() {
	xorrisofs "$@" -partition_cyl_align all -partition_offset 16 -iso_mbr_part_type 0x83 -no-emul-boot \
		-iso-level 3 -volid TALOS_V1_13_9 -quiet -- $dates 2> xorriso.log || { cat xorriso.log >&2; exit 1; }
}
cp efiboot.img uefi/
(cd uefi && iso -e --interval:appended_partition_2:all:: -append_partition 2 0xef efiboot.img -m efiboot.img -o ../uefi.iso .)

# GRUB: grub-mkrescue's own files are too large to keep; its boot sector is a dummy here
mkdir -p bios/boot/grub/i386-pc
cp vmlinuz bios/boot/vmlinuz
cp initramfs.zst bios/boot/initramfs.xz
head -c 2048 /dev/zero > bios/boot/grub/i386-pc/eltorito.img
cat > bios/boot/grub/grub.cfg <<'CFG'
set default=0
set timeout=3

insmod all_video

terminal_input console
terminal_output console

menuentry "Talos ISO" {
	set gfxmode=auto
	set gfxpayload=text
	linux /boot/vmlinuz talos.platform=metal console=ttyS0 quote=\$x\{y\}
	initrd /boot/initramfs.xz
}

menuentry "Reset Talos installation" {
	set gfxmode=auto
	set gfxpayload=text
	linux /boot/vmlinuz talos.platform=metal console=ttyS0 quote=\$x\{y\} talos.experimental.wipe=system
	initrd /boot/initramfs.xz
}

CFG
find bios -exec touch -h -d @1700000000 {} +
(cd bios && iso -r -b boot/grub/i386-pc/eltorito.img -no-emul-boot -boot-load-size 4 -o ../grub.iso .)
cp efiboot.img bios/
(cd bios && iso -r -b boot/grub/i386-pc/eltorito.img -no-emul-boot -boot-load-size 4 -eltorito-alt-boot \
	-e --interval:appended_partition_2:all:: -append_partition 2 0xef efiboot.img -m efiboot.img -o ../hybrid.iso .)
for form in uefi grub hybrid; do zstd -q -f -19 "$form.iso" -o "$out/$form.iso.zst"; done
