-- run_await: entries wait for the end of their last runs: each is due when none is outstanding any more.
-- KEYS: runs lapses bell watch timelines...
-- ARGV: names of entries
-- RETURNS: how many wait; the others have no run any more and are due at once
-- RULES: 2, 5, 7
-- @flags allow-oom
local runs, lapses, bell, watch = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local timelines = {unpack(KEYS, 5)}
local AGAIN_US = 300000000 -- a message that waits may be taken away, and nobody tells: its entry is looked at so often
-- @include clock ring runs lapses forward

sweep()
local waiting = 0
for at = 1, #ARGV do
  local entry = ARGV[at]
  local others, unbegun = {}, false
  for _, run in ipairs(read_runs(entry)) do
    if run.state ~= 'wanted' then
      others[#others + 1] = run
      unbegun = unbegun or run.state == 'sent'
    end
  end
  local last = last_run(others)
  if last then
    waiting = waiting + 1
    others[#others + 1] = {till = last, state = 'wanted', id = '-', since = stamp(now), holder = ''}
    write_runs(entry, others)
  end
  -- Should nobody end the run, it lapses, and the entry is looked at by then.
  forward(entry, last and (unbegun and math.min(last, now + AGAIN_US) or last) or now)
end
return waiting
