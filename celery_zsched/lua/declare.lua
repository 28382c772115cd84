-- declare: make a queue known with the rules that its messages are under, or only look at it.
-- KEYS: leases claims bodies parked dead reasons notes marks bell watch rules timelines...
-- ARGV: passive ('1': change nothing), then pairs name, value; an empty value takes the rule away
--       expires         milliseconds without a consumer after which the queue and all it holds go
--       message_ttl     microseconds after its due moment that a message is wanted
--       max_length      how many due messages are kept; the oldest go
--       delivery_limit  deliveries without an end after which a message is set aside
--       auto_delete     '1': the queue goes with its last consumer
-- RETURNS: whether it was known or holds anything, how many messages are ready
-- RULES: 2, 7
-- @flags allow-oom
local leases, claims, bodies, parked, dead, reasons, notes, marks, bell, watch, rules =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local timelines = {unpack(KEYS, 12)}
local passive = ARGV[1] == '1'
-- @include clock life

local known = call('EXISTS', rules) == 1 or call('EXISTS', bodies) == 1
if not passive then
  call('HDEL', rules, 'declared') -- first, since it takes no memory (see claim.lua)
  for at = 2, #ARGV, 2 do
    if ARGV[at + 1] == '' then
      call('HDEL', rules, ARGV[at])
    else
      call('HSET', rules, ARGV[at], ARGV[at + 1])
    end
  end
  call('HSET', rules, 'declared', stamp(now))
  if call('HEXISTS', rules, 'expires') == 1 or call('HEXISTS', rules, 'max_length') == 1 then
    call('HSET', rules, 'special', '1') -- publish.lua leaves such a queue to put.lua
  else
    call('HDEL', rules, 'special')
  end
  local life = tonumber(call('HGET', rules, 'expires') or '')
  if life then
    live_on(life)
  else
    for _, key in ipairs(KEYS) do
      if key ~= bell and key ~= watch then
        call('PERSIST', key)
      end
    end
  end
end
local ready = 0
for _, key in ipairs(timelines) do
  ready = ready + call('ZCOUNT', key, '-inf', stamp(now))
end
return {known and 1 or 0, ready}
