-- run_end: runs of entries are over; an entry that waits for the end of its last run is due at once.
-- KEYS: runs lapses bell watch timelines...
-- ARGV: two per run: entry, id
-- RETURNS: how many of them were outstanding
-- RULES: 2, 5, 7
-- @flags allow-oom
local runs, lapses, bell, watch = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local timelines = {unpack(KEYS, 5)}
local WIDTH = 2
local REMEMBERED_US = 600000000 -- longer than a scheduler that died keeps another from sending the same again
-- @include clock ring runs lapses forward

sweep()
local ended = 0
for at = 1, #ARGV, WIDTH do
  local entry, id = ARGV[at], ARGV[at + 1]
  local left, wanted = {}, false
  for _, run in ipairs(read_runs(entry)) do
    if run.id == id and is_outstanding(run) then
      ended = ended + 1
    elseif run.state ~= 'over' then
      left[#left + 1] = run
      wanted = wanted or run.state == 'wanted'
    end
  end
  if wanted and not last_run(left) then
    left = {}
    forward(entry, now)
  end
  left[#left + 1] = {till = now + REMEMBERED_US, state = 'over', id = id, since = stamp(now), holder = ''}
  write_runs(entry, left)
end
return ended
