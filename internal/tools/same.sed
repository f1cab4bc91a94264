# What an earlier revision said otherwise on purpose: three strategies had other names.
s/^( *)configure-blank( +[a-z0-9]+)/\1install-reset\2/
s/^( *)reconfigure( +[a-z0-9]+)/\1reshape\2/
s/^( *)configure( +[a-z0-9]+)/\1apply-config\2/
s/^( *[0-9]+ )configure:/\1apply-config:/
s/\| configure \|/| apply-config |/
s/"strategy": "configure"/"strategy": "apply-config"/
s/"why": "configure:/"why": "apply-config:/
# Words that were hard to read.
s/see that it has a system disk/check the system disk/
s/see that it boots the entry that it booted before/check that it boots the same entry as before/
s/see that (no hand-over of a disk|no volume depends on|storage [^ ]+ hands|Proxmox creates a VM)/check that \1/
s/put back what was taken away for the roll/restore the settings of VM and node/
s/note (the boot entry that an earlier disk) has left/record \1 left/
s/note that the replacement is given up/record that the replacement is cancelled/
s/note (what is to be made|that the build does not boot here)/record \1/
s/only what is beside it is put right/only leftovers are cleaned up/
s/put the previous lock back, with what it is of (\([^)]*\)), and recast roll/restore the previous lock with its recast.yaml and schematics \1, then recast roll/
s/says how to give it up/says how to cancel it/
s/a bootstrap that was interrupted goes on/an interrupted bootstrap continues/
s/with the same snapshot it goes on/with the same snapshot it continues/
s/A removal that was interrupted goes on/An interrupted removal continues/
s/run the hooks behind/run the hooks after/
s/system disk that was given up is/system disk of a cancelled replacement is/
s/had made and which was given up/made before it was cancelled/
