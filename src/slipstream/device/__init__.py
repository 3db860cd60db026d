"""Devices: streams, events, gates and graphs, by one small interface (`device.api`)."""
