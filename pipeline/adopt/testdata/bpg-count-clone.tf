# cp-0
resource "proxmox_virtual_environment_vm" "cp" {  # in the source of module.talos
  lifecycle {
    prevent_destroy = true
    ignore_changes  = [disk, efi_disk, cdrom, boot_order, description, started, on_boot]
  }
}
removed {
  from = module.talos.proxmox_virtual_environment_vm.cp
  lifecycle {
    destroy = false
  }
}
# worker-0, worker-1
resource "proxmox_virtual_environment_vm" "worker" {  # in the source of module.talos
  lifecycle {
    prevent_destroy = true
    ignore_changes  = [disk, efi_disk, cdrom, boot_order, description, started, on_boot]
  }
}
removed {
  from = module.talos.proxmox_virtual_environment_vm.worker
  lifecycle {
    destroy = false
  }
}
