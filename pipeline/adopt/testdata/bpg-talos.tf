# cp1, wk1
resource "proxmox_virtual_environment_vm" "talos" {
  lifecycle {
    prevent_destroy = true
    ignore_changes  = [disk, efi_disk, cdrom, boot_order, description, started, on_boot]
  }
}
removed {
  from = proxmox_virtual_environment_vm.talos
  lifecycle {
    destroy = false
  }
}
